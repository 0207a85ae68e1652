"""The dual step alone, for 10^7 dense multipliers, projection included.

It is compared with copies of as many bytes as a fused kernel must move: read theta, xi and e, write theta and xi.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cooper
import torch
from torch.profiler import ProfilerActivity, profile

import nupi
from benchmarks.timing import Row, at_least, at_most, best_times, listed
from nupi.constraints import Bounds
from nupi.optim.base import Work

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 10_000_000


def dual_step(error: torch.Tensor, **options: Any) -> Callable[[], None]:
    param = torch.zeros(COUNT)
    param.grad = error
    dual = nupi.NuPI([param], ki=0.1, kp=1.0, nu=0.5, **options)
    work = [Work(dual.param_groups[0], param, error, Bounds())]

    def step() -> None:
        with torch.no_grad():
            dual.apply(work)

    return step


def run() -> list[Row]:
    error = torch.randn(COUNT)
    step, default = dual_step(error, form="velocity"), dual_step(error)
    compiled = torch.compile(step)

    theirs = cooper.multipliers.DenseMultiplier(num_constraints=COUNT)
    theirs.set_constraint_type(cooper.ConstraintType.INEQUALITY)
    theirs.weight.grad = error.clone()
    their_dual = cooper.optim.nuPI(theirs.parameters(), lr=1.0, Kp=1.0, Ki=0.1, ema_nu=0.5, maximize=True)

    def cooper_step() -> None:
        their_dual.step()
        theirs.post_step_()

    half = COUNT // 2
    source = [torch.randn(COUNT), torch.randn(COUNT), torch.randn(half)]
    target = [torch.empty(COUNT), torch.empty(COUNT), torch.empty(half)]

    def copy() -> None:
        # Two and a half copies read 2.5 and write 2.5 arrays: as many as the five of a fused kernel.
        for to, come in zip(target, source, strict=True):
            to.copy_(come)

    for _ in range(3):
        step()
        default()
        compiled()
        cooper_step()
    steps = {"copy": copy, "eager": step, "default": default, "compiled": compiled, "Cooper": cooper_step}
    times = best_times(steps, rounds=10, calls=1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        step()
    allocated = max(event.self_cpu_memory_usage for event in log.events())
    return [
        at_most("velocity form, eager / copy", times["eager"] / times["copy"], 2.0, listed(times)),
        at_most("default form, eager / copy", times["default"] / times["copy"], 3.0),
        at_most("velocity form, compiled / copy", times["compiled"] / times["copy"], 1.2),
        at_most("largest allocation in a step, in multipliers", allocated / (4 * COUNT), 0.001),
        at_least("Cooper / eager", times["Cooper"] / times["eager"], 15.0),
        at_least("Cooper / compiled", times["Cooper"] / times["compiled"], 50.0),
    ]
