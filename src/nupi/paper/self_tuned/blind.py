"""Two more tasks for SelfTuned, written down before its rule was final and not run until it was.

`nupi.paper.self_tuned.unseen` has two that were chosen in the same way, but whose results were seen while the rule
still changed. These have kinds of constraints, units, optimizers and a schedule that none of the others have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from nupi import Band, Inequality
from nupi.paper.self_tuned.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

CODES = 4
TOLERANCE = 0.05  # of a correlation
MOST_WEIGHT = 100.0  # the sum of the absolute weights; an untrained network has about 160
LEAST_RECALL = 0.97
EIGHT = 8


def codes(seed: int, *, steps: int = 1_500, batch: int = 128) -> Task:
    """Digits compressed to four numbers whose correlations lie within 0.05 of zero: six bands. RMSprop."""
    rows = torch.from_numpy(load_digits().data).float() / 16
    rng, (encoder, decoder) = _made(
        seed,
        lambda: (
            nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, CODES)),
            nn.Sequential(nn.Linear(CODES, 32), nn.Tanh(), nn.Linear(32, 64)),
        ),
    )
    above = torch.triu_indices(CODES, CODES, offset=1)

    def terms(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = encoder(some)
        return mse_loss(decoder(code), some), torch.corrcoef(code.T)[above[0], above[1]]

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, correlations = terms(rows[torch.randint(len(rows), (batch,), generator=rng)])
        return loss, {"correlation": correlations}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            loss, correlations = terms(rows)
        return {"violation": max(0.0, float(correlations.abs().max()) - TOLERANCE), "loss": float(loss)}

    parameters = [*encoder.parameters(), *decoder.parameters()]
    primal = torch.optim.RMSprop(parameters, lr=1e-3)
    constraints = {"correlation": Band(len(above[0]), tolerance=TOLERANCE)}
    return Task(f"codes, seed {seed}", parameters, primal, constraints, evaluate, steps, judge)


def light_digits(seed: int, *, steps: int = 1_500, batch: int = 64) -> Task:
    """Digits by a network of bounded weight that finds 97% of the eights: two inequalities in units far apart.

    The weight is the sum of absolute values, at most 100; the recall is the mean probability. AdamW, with a cosine.
    """
    digits = load_digits()
    rows, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    rng, (model,) = _made(seed, lambda: (nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),))
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]

    def terms(some: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logits, eights = model(rows[some]), (labels[some] == EIGHT).float()
        found = (logits.softmax(1)[:, EIGHT] * eights).sum() / eights.sum().clamp(min=1.0)
        # A batch without an eight says nothing about them.
        recall = torch.where(eights.any(), LEAST_RECALL - found, torch.zeros_like(found))
        weight = torch.stack([each.abs().sum() for each in weights]).sum()
        return cross_entropy(logits, labels[some]), {"weight": weight - MOST_WEIGHT, "recall": recall}

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return terms(torch.randint(len(rows), (batch,), generator=rng))

    def judge() -> dict[str, float]:
        with torch.no_grad():
            loss, found = terms(torch.arange(len(rows)))
        worst = max(float(found["weight"]) / MOST_WEIGHT, float(found["recall"]), 0.0)
        return {"violation": worst, "loss": float(loss)}

    parameters = list(model.parameters())
    primal = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(primal, steps)
    primal.register_step_post_hook(lambda *_: cosine.step())
    constraints = {"weight": Inequality(), "recall": Inequality()}
    return Task(f"light digits, seed {seed}", parameters, primal, constraints, evaluate, steps, judge)


def _made(
    seed: int, make: Callable[[], tuple[nn.Sequential, ...]]
) -> tuple[torch.Generator, tuple[nn.Sequential, ...]]:
    """A generator for the batches, and networks whose weights follow from the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.Generator().manual_seed(seed), make()
