"""Violations of 512 constraints out of m: the cost must depend on the batch, not on m."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cooper
import torch

import nupi
from benchmarks.timing import Row, at_most, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 512
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def with_nupi(count: int) -> Callable[[], None]:
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(count)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    batches = [nupi.Indexed(torch.randn(BATCH), torch.randint(count, (BATCH,))) for _ in range(8)]

    def step() -> None:
        batches.append(batch := batches.pop(0))
        lagrangian.ascend(dual, {"c": batch})

    return step


def with_cooper(count: int) -> Callable[[], None]:
    multiplier = cooper.multipliers.IndexedMultiplier(num_constraints=count)
    multiplier.set_constraint_type(cooper.ConstraintType.INEQUALITY)
    dual = cooper.optim.nuPI(multiplier.parameters(), lr=1.0, Kp=1.0, Ki=0.1, maximize=True)
    batches = [(torch.randn(BATCH), torch.randint(count, (BATCH,))) for _ in range(8)]

    def step() -> None:
        batches.append(batch := batches.pop(0))
        values, indices = batch
        dual.zero_grad()
        (multiplier(indices) * values).sum().backward()
        dual.step()
        multiplier.post_step_()

    return step


def run() -> list[Row]:
    torch.set_num_threads(1)
    ours = best_times({f"m = {m:,}": with_nupi(m) for m in SIZES}, rounds=40, calls=10)
    theirs = best_times({f"m = {m:,}": with_cooper(m) for m in SIZES}, rounds=5, calls=1)
    first, last = f"m = {SIZES[0]:,}", f"m = {SIZES[-1]:,}"
    return [
        at_most("nupi, slowest / fastest m", max(ours.values()) / min(ours.values()), 1.5, listed(ours)),
        Row("Cooper, largest / smallest m", theirs[last] / theirs[first], "", None, listed(theirs)),
    ]
