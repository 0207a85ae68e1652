"""Train one classifier on Adult under statistical parity: the loop behind every fairness figure.

The problem: minimise the cross-entropy so that in each of ten groups (sex and race) the mean of
sigmoid(logit) equals the mean over everybody. The primal player takes Adam steps on batches, where the gap
of each group present in the batch stands in for the exact one. The dual player moves once an epoch, on the
exact gaps over all training rows, and moves first: its first error is that of the untrained model.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import nupi
from nupi.paper.data import adult
from nupi.rates import StatisticalParity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION = "3"
"""Change it when `train` computes something else: results that were kept under another one are not used."""

LEARNING_RATE = 1e-2
BATCH_ROWS = 512
CHUNK_ROWS = 1024  # for measuring; the activations of so many rows still fit a cache near the core
TEST_EVERY = 10  # epochs
HIDDEN = 100

Measure: TypeAlias = Literal["soft", "hard"]


def train(
    *,
    seed: int,
    epochs: int,
    ki: float | None,
    kp: float = 0.0,
    nu: float = 0.0,
    measure: Measure = "soft",
    divided: bool = False,
    horizon: float | None = None,
    on_all_rows: bool = False,
) -> dict[str, Any]:
    """Train from scratch and give back the curves and the final predictions.

    Args:
        seed: of the initial weights and of the order of the rows.
        epochs: passes over the training rows.
        ki: the dual step size; None trains without constraints.
        kp: the proportional gain; 0 is gradient ascent.
        nu: the smoothing of the proportional term.
        measure: what the dual player is shown: mean sigmoids ("soft", the paper's) or the share of rows with
            a positive logit ("hard", what a user of the classifier sees). The primal player sees the former.
        divided: whether xi is divided by 1 - nu^t before it is used, as in the authors' released code.
        horizon: the dual steps of `SelfTuned`, which then takes the place of the gains.
        on_all_rows: whether `SelfTuned` measures the response on all training rows, as the multipliers are moved; if
            not, on a batch.

    Returns:
        With one row an epoch, the first before any training: accuracy, loss, gaps and hard_gaps on the
        training rows, and the multipliers that the next epoch is trained with. With one row for each of
        test_epoch: test_accuracy and so on. Then the final positive predictions on both splits, and the
        processor seconds of it all.
    """
    if measure not in ("soft", "hard"):
        raise ValueError(f"measure={measure!r}: choose 'soft' or 'hard'")
    started = time.process_time()
    data = _data()
    rng = torch.Generator().manual_seed(seed)
    model = classifier(data.train.features.shape[1], rng)
    primal = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    parity = StatisticalParity(len(data.groups))
    lagrangian = nupi.Lagrangian({"parity": nupi.Equality(parity.size)})
    dual: torch.optim.Optimizer | None = None

    def everything() -> tuple[torch.Tensor, dict[str, Any]]:
        return step_on(model, parity, data.train.features, data.train.labels, data.train.groups)

    if horizon is not None:
        measured_on = everything if on_all_rows else None
        dual = nupi.SelfTuned(lagrangian.parameters(), horizon, primal=primal, evaluate=measured_on)
    elif ki is not None:
        dual = dual_optimizer(lagrangian.parameters(), ki, kp, nu, divided=divided)

    curves: dict[str, list[Any]] = {}
    for epoch in range(epochs + 1):
        point = evaluate(model, data.train, parity)
        if dual is not None and epoch < epochs:
            gaps = point["gaps"] if measure == "soft" else point["hard_gaps"]
            lagrangian.ascend(dual, {"parity": gaps})
        point["multipliers"] = lagrangian.multipliers["parity"].clone()
        if epoch % TEST_EVERY == 0 or epoch == epochs:
            test = evaluate(model, data.test, parity)
            point |= {"test_epoch": torch.tensor(epoch)} | {f"test_{name}": x for name, x in test.items()}
        for name, value in point.items():
            curves.setdefault(name, []).append(value)
        if epoch == epochs:
            break
        for features, labels, groups in shuffled(data.train, rng):
            loss, violations = step_on(model, parity, features, labels, groups)
            if dual is not None:
                loss = lagrangian(loss, violations)
            primal.zero_grad()
            loss.backward()
            primal.step()

    return {
        **{name: torch.stack(values) for name, values in curves.items()},
        "train_positive": all_logits(model, data.train) > 0,
        "test_positive": all_logits(model, data.test) > 0,
        "seconds": time.process_time() - started,
    }


def step_on(
    model: nn.Module,
    parity: StatisticalParity,
    features: torch.Tensor,
    labels: torch.Tensor,
    groups: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss and the violations on some rows, with their graph."""
    logits = model(features).squeeze(1)
    loss = binary_cross_entropy_with_logits(logits, labels)
    return loss, {"parity": parity(logits, None, groups)}


def dual_optimizer(
    multipliers: Iterable[torch.Tensor], ki: float, kp: float, nu: float, *, divided: bool
) -> torch.optim.Optimizer:
    """The authors' controller for dense multipliers, from xi_0 = 0; with or without their division."""
    if divided:
        return DividedNuPI(multipliers, ki, kp, nu)
    return nupi.NuPI(multipliers, ki=ki, kp=kp, nu=nu, init="zero", form="velocity")


class DividedNuPI(torch.optim.Optimizer):
    """The velocity form on xi_t / (1 - nu^t), as the authors' code has it: the average without its bias to zero.

    theta += ki e_t + kp (z_t - z_{t-1}),   z_t = xi_t / (1 - nu^t),   xi_t = nu xi_{t-1} + (1 - nu) e_t,   xi_0 = 0.

    So z_1 = e_1: the second step has a full kick kp e_1, where without the division it is kp (1 - nu) e_1.
    """

    def __init__(self, params: Iterable[torch.Tensor], ki: float, kp: float, nu: float) -> None:
        super().__init__(params, {"ki": ki, "kp": kp, "nu": nu, "maximize": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """One step on the violations in `grad`."""
        for group in self.param_groups:
            ki, kp, nu = group["ki"], group["kp"], group["nu"]
            for theta in group["params"]:
                error, state = theta.grad, self.state[theta]
                theta.add_(error, alpha=ki)
                if not state:
                    state.update(step=0, xi=torch.zeros_like(theta), used=torch.zeros_like(theta))
                    continue
                state["step"] += 1
                state["xi"].lerp_(error, 1 - nu)
                used = state["xi"] / (1 - nu ** state["step"])
                theta.add_(used - state["used"], alpha=kp)
                state["used"] = used


def classifier(inputs: int, rng: torch.Generator) -> nn.Sequential:
    """The paper's network, two hidden layers of 100, with torch's initial weights drawn from `rng`."""
    model = nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):  # what nn.Linear does itself, but without the global generator
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=rng)
                layer.bias.uniform_(-bound, bound, generator=rng)
    return model


def shuffled(split: adult.Split, rng: torch.Generator) -> Iterator[tuple[torch.Tensor, ...]]:
    """One pass over the rows in random order, batch by batch."""
    order = torch.randperm(len(split), generator=rng)
    columns = (split.features[order], split.labels[order], split.groups[order])
    for start in range(0, len(order), BATCH_ROWS):
        yield tuple(column[start : start + BATCH_ROWS] for column in columns)


@torch.no_grad()
def all_logits(model: nn.Module, split: adult.Split) -> torch.Tensor:
    """The model's logits on all rows, in order; only a chunk of the activations exists at a time."""
    starts = range(0, len(split), CHUNK_ROWS)
    return torch.cat([model(split.features[start : start + CHUNK_ROWS]).squeeze(1) for start in starts])


def evaluate(model: nn.Module, split: adult.Split, parity: StatisticalParity) -> dict[str, torch.Tensor]:
    """Accuracy, loss, and the exact gaps both ways, over all rows in one pass of the model."""
    rows = (all_logits(model, split), split.labels, split.groups)
    return {
        "accuracy": ((rows[0] > 0) == (split.labels == 1)).double().mean(),
        "loss": binary_cross_entropy_with_logits(rows[0], split.labels),
        "gaps": parity.measure([rows]),
        "hard_gaps": parity.measure([rows], hard=True),
    }


@functools.cache
def _data() -> adult.Adult:
    return adult.load()
