"""The cost of `SelfTuned`: in an ascend of 70 constraints, in a training step, and in one of the small CNN.

Between measurements `SelfTuned` computes new gains every 180 steps here; the mean over 180 steps is compared with NuPI.
A measurement is timed by itself, in units of a training step, and averaged over a training of four times `steps`. The
number of measurements depends on how steady the response is, so they are counted in such a training.
"""

from __future__ import annotations

from itertools import cycle
from time import process_time
from typing import TYPE_CHECKING

import torch

import nupi
from benchmarks.overhead import cnn, evaluate
from benchmarks.step import KI, KP, data, model
from benchmarks.timing import Row, at_most, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

STEPS = 1_000


def ascend(kind: str) -> Callable[[], None]:
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(70)})
    x = torch.zeros(5, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual: torch.optim.Optimizer = nupi.NuPI(lagrangian.parameters(), ki=0.01, kp=0.1, nu=0.9)
    if kind != "NuPI":
        dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal if kind == "measured" else None)
    # With constant violations, averages would become denormal numbers, on which arithmetic is slow.
    draw = torch.Generator().manual_seed(0)
    level = torch.linspace(-1.0, -0.1, 70)
    batches = cycle([{"c": level + 0.1 * torch.randn(70, generator=draw)} for _ in range(97)])
    for _ in range(70):  # past the first steps, each of which finds new gains
        lagrangian.ascend(dual, next(batches))
    return lambda: lagrangian.ascend(dual, next(batches))


def step_of_70(*, tuned: bool) -> Callable[[], None]:
    """The training step of `step.py`: with NuPI, or with SelfTuned that has measured and does not do so again."""
    x, y = data()
    weight, bias, primal = model()
    lagrangian = nupi.Lagrangian({"margin": nupi.Inequality(70)})
    dual: torch.optim.Optimizer = nupi.NuPI(lagrangian.parameters(), ki=KI, kp=KP)
    if tuned:
        dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal)

    def step() -> None:
        violations = {"margin": 1 - y * (x @ weight + bias)}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(weight.square().sum() / 2, violations).backward()
        primal.step()

    def without_measuring() -> None:
        for group in dual.param_groups:
            group["measured_at"] = group["taken"] + 1
        step()

    for _ in range(70):  # past the first steps, each of which finds new gains
        step()
    return without_measuring if tuned else step


def training_step(*, measuring: bool | None) -> Callable[[], None]:
    """A step with NuPI (None), or with SelfTuned that measures at every step, or at none."""
    network, x = cnn()
    primal = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    lagrangian = nupi.Lagrangian({"rates": nupi.Equality(10), "size": nupi.Inequality()})
    dual: torch.optim.Optimizer = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=0.1, nu=0.9)
    if measuring is not None:
        dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal)

    def step() -> None:
        if measuring is not None:  # the step is counted before the check whether to measure
            for group in dual.param_groups:
                group["measured_at"] = 0 if measuring else group["taken"] + 1
        train(network, x, primal, lagrangian, dual)

    return step


def train(
    network: nn.Module,
    x: torch.Tensor,
    primal: torch.optim.Optimizer,
    lagrangian: nupi.Lagrangian,
    dual: torch.optim.Optimizer,
) -> None:
    loss, violations = evaluate(network, x, torch.arange(len(x)) % 10)
    lagrangian.ascend(dual, violations)
    primal.zero_grad()
    lagrangian(loss, violations).backward()
    primal.step()


def measurements() -> int:
    """How often a training of four times `STEPS` measures: the same CNN, on new images at each step."""
    network, x = cnn()
    primal = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    lagrangian = nupi.Lagrangian({"rates": nupi.Equality(10), "size": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), STEPS, primal=primal)
    draw = torch.Generator().manual_seed(0)
    found = set()
    for _ in range(4 * STEPS):
        train(network, torch.randn(x.shape, generator=draw), primal, lagrangian, dual)
        found.add(dual.param_groups[0]["measured_at"])
    return len(found)


def whole_steps_of_70() -> Row:
    kinds = {"NuPI": step_of_70(tuned=False), "between": step_of_70(tuned=True)}
    times = best_times(kinds, rounds=10, calls=15 * 12, clock=process_time)
    ratio = times["between"] / times["NuPI"]
    return at_most(
        "training step with 70 constraints, between measurements / NuPI", ratio, 1.3, listed(times)
    )


def run() -> list[Row]:
    torch.set_num_threads(1)
    kinds = {kind: ascend(kind) for kind in ("NuPI", "measured", "identified")}
    times = best_times(kinds, rounds=10, calls=15 * 12, clock=process_time)  # whole cycles of 180 steps
    rows = [
        at_most(
            "ascend of 70, between measurements / NuPI", times["measured"] / times["NuPI"], 1.3, listed(times)
        )
    ]
    rows.append(
        Row("ascend of 70, identified / NuPI", times["identified"] / times["NuPI"], "", None, listed(times))
    )
    rows.append(whole_steps_of_70())
    steps = {
        "NuPI": training_step(measuring=None),
        "between": training_step(measuring=False),
        "measuring": training_step(measuring=True),
    }
    times = best_times(steps, rounds=30, calls=1, clock=process_time)
    one = times["measuring"] - times["between"]
    count = measurements()
    mean = times["between"] + one * count / (4 * STEPS)
    note = f"{listed(times)}; {count} measurements in {4 * STEPS} steps"
    rows.append(
        at_most("small CNN, 11 constraints: a step on average / NuPI", mean / times["NuPI"], 1.01, note)
    )
    rows.append(Row("small CNN: one measurement / a step", one / times["NuPI"], "", None, note))
    return rows
