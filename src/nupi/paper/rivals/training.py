"""Train one classifier under a benchmark's constraint.

The model takes Adam steps on batches and sees sigmoids of its logits. Every few steps the multipliers move by the exact
rates of decisions on all training rows; or, where a problem asks for it, on the half of the rows that the model does
not train on. `Best` looks at the model by the same measure. `SelfTuned` finds the gains: the constraints should be met
within a quarter of the dual steps, as everywhere in nupi.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import nupi
from nupi import rates
from nupi.paper.data.tables import Rows, Table
from nupi.paper.rivals.problems import PROBLEMS, Benchmark, model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

VERSION = "8"
"""Change it when `train` computes something else: results that were kept under another one are not used."""

TEMPERATURE = 0.5


def train(*, problem: str, seed: int, constrained: bool = True) -> dict[str, Any]:
    """Train from scratch and judge the model to ship on both splits.

    Args:
        problem: one of `PROBLEMS`.
        seed: of the initial weights, the order of the rows and, where rows are held out, of which.
        constrained: whether under the constraint; else the last model is judged.

    Returns:
        `train` and `test`, each with error, violation (the largest of the benchmark's constraint), and mean_gap; how
        many of the models looked at were feasible; and the processor seconds.
    """
    started = time.process_time()
    chosen = PROBLEMS[problem]
    data = scaled(chosen.load())
    rng = torch.Generator().manual_seed(seed)
    fit, shown = data.train, data.train
    if chosen.held_out and constrained:
        order = torch.randperm(len(fit), generator=rng)
        fit, shown = fit.chosen(order[len(fit) // 2 :]), data.train.chosen(order[: len(fit) // 2])
    network = model(fit.features.shape[1], chosen.hidden, rng)
    looked_at, feasible = 0, 0
    if constrained:
        best = _train(network, fit, shown, chosen, len(data.groups), rng)
        looked_at, feasible = best.seen, best.feasible
    else:
        _plain(network, fit, chosen, rng)
    asked = chosen.constraint(len(data.groups))
    return {
        "train": judge(network, data.train, asked),
        "test": judge(network, data.test, asked),
        "looked_at": looked_at,
        "feasible": feasible,
        "seconds": time.process_time() - started,
    }


def _train(
    network: nn.Module, fit: Rows, shown: Rows, chosen: Benchmark, groups: int, rng: torch.Generator
) -> nupi.Best:
    """Train under the constraint, and leave the best model seen in `network`."""
    how = chosen.training
    constraint = (chosen.trained or chosen.constraint)(groups).surrogate("sigmoid", temperature=TEMPERATURE)
    lagrangian = nupi.Lagrangian({"rates": constraint.kind()})
    primal, schedule = _primal(network, chosen)
    quarter = max(1, chosen.steps // how.dual_every // 4)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=quarter, primal=primal)
    best = nupi.Best(lagrangian, chosen.tolerance)
    for step, rows in enumerate(batches(fit, chosen.steps, how.batch_rows, rng)):
        moves = step % how.dual_every == 0
        if moves or (step % how.look_every == 0 and step >= chosen.steps / 3):
            seen = _scored(network, shown)
            violations = {"rates": constraint.hard(*seen)}
            wrong = rates.error_rate().measure([seen if fit is shown else _scored(network, fit)]).item()
            best.see(network, wrong, violations, step=step)
            if moves:
                lagrangian.ascend(dual, violations)
        logits = network(rows.features).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, rows.labels)
        lagrangian(loss, {"rates": constraint.soft(logits, rows.labels, rows.members)}).backward()
        primal.step()
        primal.zero_grad()
        schedule.step()
    best.restore(network)
    return best


def _plain(network: nn.Module, fit: Rows, chosen: Benchmark, rng: torch.Generator) -> None:
    """The same training without a constraint."""
    primal, schedule = _primal(network, chosen)
    for rows in batches(fit, chosen.steps, chosen.training.batch_rows, rng):
        binary_cross_entropy_with_logits(network(rows.features).squeeze(1), rows.labels).backward()
        primal.step()
        primal.zero_grad()
        schedule.step()


def _primal(
    network: nn.Module, chosen: Benchmark
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    how = chosen.training
    primal = torch.optim.AdamW(network.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
    return primal, torch.optim.lr_scheduler.CosineAnnealingLR(primal, chosen.steps)


def batches(rows: Rows, steps: int, size: int, rng: torch.Generator) -> Iterator[Rows]:
    """So many batches of rows in random order, epoch after epoch."""
    taken = 0
    while True:
        for which in torch.randperm(len(rows), generator=rng).split(size):
            if taken == steps:
                return
            taken += 1
            yield rows.chosen(which)


def scaled(data: Table) -> Table:
    """Every column with mean 0 and deviation 1 on the training rows."""
    features = data.train.features
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)  # a column may be constant there
    train, test = (
        Rows((rows.features - mean) / deviation, rows.labels, rows.members)
        for rows in (data.train, data.test)
    )
    return Table(train, test, data.groups)


@torch.no_grad()
def _scored(network: nn.Module, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return network(rows.features).squeeze(1), rows.labels, rows.members


def judge(network: nn.Module, rows: Rows, asked: rates.Constraint) -> dict[str, float]:
    """Error, largest violation of the benchmark's constraint, and mean distance of a row's group to the rate of all."""
    return judge_decisions(_scored(network, rows)[0], rows, asked)


def judge_decisions(logits: torch.Tensor, rows: Rows, asked: rates.Constraint) -> dict[str, float]:
    """The same of decisions, given as logits of either sign."""
    batch = [(logits, rows.labels, rows.members)]
    violation = asked.measure(batch)
    gaps = rates.positive_rate(groups=rows.members.shape[1]).gap("overall").measure(batch)
    sizes = rows.members.sum(0)
    return {
        "error": rates.error_rate().measure(batch).item(),
        "violation": (violation.sums / violation.counts).max().item(),
        "mean_gap": ((gaps * sizes).sum() / sizes.sum()).item(),
    }
