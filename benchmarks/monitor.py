"""The cost of a monitor: in an `ascend` of one group, and in a training step of the small CNN.

The difference of an ascend with and without a monitor must be at most 15 us; the ratio shown is this difference divided
by 15 us. Microseconds depend on the machine, so the difference is also divided by one hand-written training step with
70 constraints, timed in the same turns.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import torch

import nupi
from benchmarks.overhead import cnn, evaluate
from benchmarks.step import by_hand
from benchmarks.timing import Row, at_most, best_times, listed
from nupi.monitor.sampler import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = 15e-6  # seconds per ascend


def ascend(size: int, *, monitored: bool) -> Callable[[], None]:
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(size)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.01, kp=0.1, nu=0.9)
    if monitored:
        nupi.Monitor(lagrangian)
    violations = {"c": torch.linspace(-1.0, -0.1, size)}
    return lambda: lagrangian.ascend(dual, violations)


def training_step(*, monitored: bool) -> Callable[[], None]:
    model, x = cnn()
    y = torch.arange(len(x)) % 10
    primal = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    lagrangian = nupi.Lagrangian({"rates": nupi.Equality(10), "size": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=0.1, nu=0.9)
    if monitored:
        nupi.Monitor(lagrangian)

    def step() -> None:
        loss, violations = evaluate(model, x, y)
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(loss, violations).backward()
        primal.step()

    return step


def run() -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for size in (1, 10, 1000):
        # Two blocks of the monitor, so that the mean includes the processing of a block.
        times = best_times(
            {
                "without": ascend(size, monitored=False),
                "with": ascend(size, monitored=True),
                "a step by hand": by_hand(),
            },
            rounds=10,
            calls=2 * BLOCK,
            clock=process_time,
        )
        extra = times["with"] - times["without"]
        rows.append(at_most(f"ascend of {size}: added time / 15 us", extra / BOUND, 1.0, listed(times)))
        share = extra / times["a step by hand"]
        rows.append(Row(f"ascend of {size}: added time / a step by hand", share, "", None))
    steps = {"without": training_step(monitored=False), "with": training_step(monitored=True)}
    times = best_times(steps, rounds=8, calls=64, clock=process_time)
    rows.append(at_most("small CNN: with / without", times["with"] / times["without"], 1.02, listed(times)))
    return rows
