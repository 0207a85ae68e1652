"""Problems with a known solution: the SVM in its cells, random quadratic programs, and the plane.

A quadratic program here is

    minimize  x^T Q x / 2 - q^T x   subject to   A x = b   (or A x <= b)

with a random Q of condition number up to 30 and a random A. It may be seen through noise: each step adds fresh
Gaussian noise to the violations, of a share of the size of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi import Equality, Inequality
from nupi.paper.plane import problem as plane
from nupi.paper.self_tuned.task import OPTIMIZERS, Task, worst
from nupi.paper.svm.problem import svm

if TYPE_CHECKING:
    from collections.abc import Sequence

CELLS: dict[str, tuple[str, float, float]] = {
    "paper": ("momentum", 1e-3, 1.0),
    "units x100": ("momentum", 1e-3, 100.0),
    "units x0.01": ("momentum", 1e-3, 0.01),
    "lr x10": ("momentum", 1e-2, 1.0),
    "lr /10": ("momentum", 1e-4, 1.0),
    "no momentum": ("sgd", 1e-3, 1.0),
    "Adam": ("adam", 1e-3, 1.0),
}
"""SVM cells: optimizer, its step size, and the factor on the violations' units."""


def svm_cell(name: str, steps: int = 5_000) -> Task:
    """The SVM under one primal optimizer and one unit of its violations; all numbers are in the first unit."""
    optimizer, lr, unit = CELLS[name]
    problem = svm()
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    tail: list[torch.Tensor] = []

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        violations = problem.violations(x)
        tail.append(worst(violations.detach(), equality=False))
        del tail[:-500]
        return problem.objective(x), {"margin": unit * violations}

    def judge() -> dict[str, float]:
        return {
            "violation": float(torch.stack(tail).max()),
            "x": float((x.detach() - problem.x).norm()),
        }

    constraints = {"margin": Inequality(len(problem.rows), init=torch.zeros(70, dtype=torch.float64))}
    return Task(
        f"SVM, {name}", [x], OPTIMIZERS[optimizer]([x], lr=lr), dict(constraints), evaluate, steps, judge
    )


def quadratic_program(
    seed: int, *, equality: bool, optimizer: str, noise: float = 0.0, steps: int = 1_500
) -> Task:
    """A random quadratic program with 2 to 8 constraints on 10 to 20 variables."""
    rng = torch.Generator().manual_seed(seed)
    wide: dict[str, Any] = {"generator": rng, "dtype": torch.float64}
    n = int(torch.randint(10, 21, (), generator=rng))
    k = int(torch.randint(2, 9, (), generator=rng))
    basis, _ = torch.linalg.qr(torch.randn(n, n, **wide))
    curvature = 10 ** (torch.rand(n, **wide) * 1.5 - 1.5)  # from 0.03 to 1
    q = basis @ torch.diag(curvature) @ basis.T
    pull = torch.randn(n, **wide)
    a = torch.randn(k, n, **wide) * 10 ** (torch.rand(k, 1, **wide) * 2 - 1)  # units from 0.1 to 10
    free = torch.linalg.solve(q, pull)
    size = a.norm(dim=1) * free.norm() / n**0.5
    right = a @ free - size * (torch.rand(k, **wide) * 1.5 - (0.5 if not equality else 0.75))
    x = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    unit = torch.maximum(right.abs(), 0.1 * size)
    # Adam's step is its rate, whatever the gradient: fast enough to cross the distance within a tenth of training.
    lr = {"sgd": 0.2, "momentum": 0.02, "adam": 10 * float(free.abs().max()) / steps}[optimizer]

    def exact() -> torch.Tensor:
        gap: torch.Tensor = a @ x - right
        return gap

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        seen = exact()
        tail.append(seen.detach())
        del tail[: -(steps // 10)]
        if noise:
            seen = seen + noise * unit * torch.randn(k, **wide)
        return x @ q @ x / 2 - pull @ x, {"rows": seen}

    first = float((worst(exact().detach() / unit, equality=equality)).clamp(min=0.05))

    tail: list[torch.Tensor] = []  # under noise the multipliers never rest: the mean of the last tenth counts

    def judge() -> dict[str, float]:
        left = worst(torch.stack(tail).mean(0) / unit, equality=equality)
        return {"violation": float(left) / first if bool(left.isfinite()) else float("inf")}

    kind = Equality if equality else Inequality
    constraints = {"rows": kind(k, init=torch.zeros(k, dtype=torch.float64))}
    name = f"QP {seed} {'=' if equality else '<='} {optimizer}{' noisy' if noise else ''}"
    return Task(name, [x], OPTIMIZERS[optimizer]([x], lr=lr), dict(constraints), evaluate, steps, judge)


def plane_start(start: Sequence[float], steps: int = 15_000) -> Task:
    """The nonconvex problem in the plane from one start; it should end at the global optimum."""
    x = torch.tensor(list(start), dtype=torch.float64, requires_grad=True)
    goal = plane.optima().constrained

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return plane.objective(x), {"curve": plane.violation(x).reshape(1)}

    def judge() -> dict[str, float]:
        return {
            "violation": float(plane.violation(x.detach()).abs()),
            "x": float((x.detach() - goal).norm()),
        }

    constraints = {"curve": Equality(init=torch.zeros(1, dtype=torch.float64))}
    primal = torch.optim.SGD([x], lr=plane.LR)
    return Task(f"plane {start}", [x], primal, dict(constraints), evaluate, steps, judge)
