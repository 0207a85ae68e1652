"""Families of runs on hard-margin SVMs: one constraint for each point."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from benchmarks.findings.linear import Linear, damping, gains, steps_to_settle
from benchmarks.findings.training import Run, label, numbers

if TYPE_CHECKING:
    from random import Random

    from benchmarks.findings.training import Family


def svm(kind: str) -> Family:
    """A hard-margin SVM on separable points, one constraint each; the spectrum over its support vectors."""

    def family(random: Random) -> Run | None:
        g = numbers(random)
        m, steps = random.choice([12, 24]), random.choice([1500, 3000])
        y = (torch.arange(m) % 2 * 2 - 1).double()
        points = torch.randn(m, 2, generator=g, dtype=torch.float64) * 0.6 + 2.0 * y[:, None]
        a = -y[:, None] * torch.cat([points, torch.ones(m, 1).double()], 1)
        h = torch.diag(torch.tensor([1.0, 1.0, 0.0])).double()
        support = _support(a)
        if support is None:
            return None
        lr = 0.05
        problem = Linear(h, a[support], -torch.ones(len(support)).double(), torch.zeros(3).double(), lr, 0.0)
        ki, kp = gains(
            random,
            problem,
            (0.02, 0.12) if kind == "healthy" else (0.03, 0.4),
            (0.8, 1.3) if kind == "healthy" else (0.0, 0.05),
        )
        values = torch.linalg.eigvals(problem.matrix(ki, kp, 0.0))
        moving = [complex(v) for v in values if abs(v) > 1e-6]
        radius = max(abs(v) for v in moving)
        swing = [v for v in moving if abs(v.imag) > 1e-9 and damping(v) < 0.1]
        if kind == "healthy" and (radius >= 1 or swing or max(map(steps_to_settle, moving)) > steps / 3):
            return None
        if kind == "oscillating":
            slow = [v for v in swing if 6 < 2 * math.pi / abs(math.atan2(v.imag, v.real)) < steps / 8]
            if not slow or max(map(steps_to_settle, slow)) < steps / 2:
                return None
        names = label(
            *(() if kind == "healthy" else (kind,)),
            also=() if kind == "healthy" else ("overshoot", "diverging"),
        )
        run = Run(f"svm-{kind}", 0, **names, inequality=True, ki=ki, kp=kp, nu=0.0)
        problem.a, problem.b = a, -torch.ones(m).double()
        run = problem.run(run, steps)
        # Near the optimum the support vectors decide. The path to it is not linear, and may end in a cycle.
        ended_well = float(run.violation[steps // 2 :].max()) < 0.03
        return run if ended_well or kind != "healthy" else None

    return family


def _support(a: torch.Tensor) -> list[int] | None:
    """The constraints 1 + a x <= 0 that bind at the optimum, by scipy."""
    from scipy.optimize import minimize

    matrix = a.numpy()
    found = minimize(  # type: ignore[call-overload] # its stubs ask for a narrower dict of constraints
        lambda x: 0.5 * x[:2] @ x[:2],
        [0.0, 0.0, 0.0],
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: -1.0 - matrix @ x},
        options={"maxiter": 500},
    )
    if not found.success:
        return None
    binding = [i for i, slack in enumerate(-1.0 - matrix @ found.x) if slack < 1e-6]
    return binding if 2 <= len(binding) <= 3 else None
