"""What gains that find themselves cost: an ascend of 70 constraints, and a training step of the small CNN.

Between measurements `SelfTuned` finds new gains once in a stride; the mean over whole strides is compared with NuPI's.
A measurement is timed by itself, in units of a training step, and spread over a training of four times `steps`.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import torch

import nupi
from benchmarks.overhead import cnn, evaluate
from benchmarks.timing import Row, at_most, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 1_000


def ascend(kind: str) -> Callable[[], None]:
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(70)})
    x = torch.zeros(5, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual: torch.optim.Optimizer = nupi.NuPI(lagrangian.parameters(), ki=0.01, kp=0.1, nu=0.9)
    if kind != "NuPI":
        dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal if kind == "measured" else None)
    violations = {"c": torch.linspace(-1.0, -0.1, 70)}
    for _ in range(70):  # past the first steps, each of which finds new gains
        lagrangian.ascend(dual, violations)
    return lambda: lagrangian.ascend(dual, violations)


def training_step(*, measuring: bool | None) -> Callable[[], None]:
    """A step with NuPI (None), or with SelfTuned that measures at every step, or at none."""
    model, x = cnn()
    y = torch.arange(len(x)) % 10
    primal = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    lagrangian = nupi.Lagrangian({"rates": nupi.Equality(10), "size": nupi.Inequality()})
    dual: torch.optim.Optimizer = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=0.1, nu=0.9)
    if measuring is not None:
        dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal)

    def step() -> None:
        loss, violations = evaluate(model, x, y)
        lagrangian.ascend(dual, violations)
        if measuring is not None:
            for group in dual.param_groups:
                group["measured_at"] = 0 if measuring else group["taken"]
        primal.zero_grad()
        lagrangian(loss, violations).backward()
        primal.step()

    return step


def measurements() -> int:
    """How often a training of four times `STEPS` measures, by the schedule itself."""
    param = torch.zeros(1)
    dual = nupi.SelfTuned(
        [param], STEPS, primal=torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    )
    (group,) = dual.param_groups
    count = 0
    for taken in range(1, 4 * STEPS + 1):
        group["taken"] = taken
        if dual._measures(group):
            group["measured_at"] = taken
            count += 1
    return count


def run() -> list[Row]:
    torch.set_num_threads(1)
    kinds = {kind: ascend(kind) for kind in ("NuPI", "measured", "identified")}
    times = best_times(kinds, rounds=10, calls=15 * 8, clock=process_time)
    rows = [
        at_most(
            "ascend of 70, between measurements / NuPI", times["measured"] / times["NuPI"], 1.3, listed(times)
        )
    ]
    rows.append(
        Row("ascend of 70, identified / NuPI", times["identified"] / times["NuPI"], "", None, listed(times))
    )
    steps = {
        "NuPI": training_step(measuring=None),
        "between": training_step(measuring=False),
        "measuring": training_step(measuring=True),
    }
    times = best_times(steps, rounds=4, calls=8, clock=process_time)
    one = times["measuring"] - times["between"]
    mean = times["between"] + one * measurements() / (4 * STEPS)
    note = f"{listed(times)}; {measurements()} measurements in {4 * STEPS} steps"
    rows.append(
        at_most("small CNN, 11 constraints: a step on average / NuPI", mean / times["NuPI"], 1.01, note)
    )
    rows.append(Row("small CNN: one measurement / a step", one / times["NuPI"], "", None, note))
    return rows
