"""A hundred groups of multipliers in one optimizer, beside torch's own SGD(foreach=True)."""

from __future__ import annotations

import torch

import nupi
from benchmarks.timing import Row, at_most, best_times, listed

GROUPS = 100


def run() -> list[Row]:
    torch.set_num_threads(1)
    names = [f"layer{i}" for i in range(GROUPS)]
    violations = {name: torch.randn(10) for name in names}
    params = [torch.zeros(10) for _ in names]
    sgd_params = [torch.zeros(10) for _ in names]
    for param, sgd_param, violation in zip(params, sgd_params, violations.values(), strict=True):
        param.grad = sgd_param.grad = violation
    dual = nupi.NuPI(params, ki=0.1, kp=1.0)
    sgd = torch.optim.SGD(sgd_params, lr=0.1, maximize=True, foreach=True)
    lagrangian = nupi.Lagrangian({name: nupi.Inequality(10) for name in names})
    its_dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    times = best_times(
        {"SGD": sgd.step, "NuPI": dual.step, "ascend": lambda: lagrangian.ascend(its_dual, violations)},
        rounds=60,
        calls=10,
    )
    return [
        at_most("NuPI.step / SGD.step", times["NuPI"] / times["SGD"], 3.0, listed(times)),
        Row("ascend (checks, step, projection) / SGD.step", times["ascend"] / times["SGD"], "", None),
    ]
