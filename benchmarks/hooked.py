"""The time saved by leaving out torch's profiler range if no profiler runs (`DualOptimizer.step.hooked`)."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

import nupi
from benchmarks.timing import Row, best_times, listed


class Wrapped(nupi.NuPI):
    """The same optimizer, with a step that torch wraps like that of any optimizer."""

    step = Optimizer.profile_hook_step(lambda self, closure=None: nupi.NuPI.step(self, closure))  # type: ignore[assignment]


def run() -> list[Row]:
    """The time of a bare step over that of a wrapped one, for 70 multipliers."""
    torch.set_num_threads(1)
    steps = {}
    for name, kind in (("bare", nupi.NuPI), ("wrapped", Wrapped)):
        param = torch.zeros(70)
        param.grad = torch.ones(70)
        steps[name] = kind([param], ki=0.1, kp=1.0).step
    times = best_times(steps, rounds=200, calls=20)
    return [Row("bare / wrapped", times["bare"] / times["wrapped"], "", None, listed(times))]
