"""Small problems with known solutions, shared by the tests of the solver and the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import nupi

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.solve.problem import Constraints, Function


@dataclass(frozen=True)
class Known:
    objective: Function
    x0: torch.Tensor
    inequality: Constraints = None
    equality: Constraints = None


def corner() -> Known:
    """Nearest point to (2, 1) in the unit disc: x = (2, 1) / sqrt(5), lambda = sqrt(5) - 1."""
    goal = torch.tensor([2.0, 1.0], dtype=torch.float64)
    return Known(
        lambda x: 0.5 * (x - goal).square().sum(),
        torch.zeros(2, dtype=torch.float64),
        inequality=lambda x: 0.5 * (x.square().sum() - 1),
    )


def mixed() -> Known:
    """A quadratic under a vector of inequalities, one of them slack, and an equality."""
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return Known(
        lambda x: 0.5 * (x - target).square().sum(),
        torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64),
        inequality={"low": lambda x: -x, "cap": lambda x: x.sum() - 5.0},
        equality={"plane": lambda x: x[0] + 2 * x[2] - 1.5},
    )


def loop(
    problem: Known,
    dual: Callable[..., torch.optim.Optimizer],
    primal: Callable[..., torch.optim.Optimizer],
    steps: int,
    *,
    restart: bool = False,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loop of the README, with the dual first: no code of the solver or the sweep in it."""
    x = problem.x0.clone().requires_grad_()
    named = {}
    groups: dict[str, nupi.Inequality | nupi.Equality] = {}
    for kind, given in (("inequality", problem.inequality), ("equality", problem.equality)):
        if given is None:
            continue
        for name, function in (given if isinstance(given, dict) else {kind: given}).items():
            named[name] = function
            shape = tuple(function(x).shape)
            groups[name] = (
                nupi.Inequality(shape, restart=restart) if kind == "inequality" else nupi.Equality(shape)
            )
    lagrangian = nupi.Lagrangian(groups).to(torch.float64)
    dual_optimizer = dual(list(lagrangian.parameters()))
    primal_optimizer = primal([x])
    for _ in range(steps):
        violations = {name: function(x) for name, function in named.items()}
        lagrangian.ascend(dual_optimizer, violations)
        primal_optimizer.zero_grad()
        lagrangian(problem.objective(x), violations).backward()
        primal_optimizer.step()
    return x.detach(), lagrangian.multipliers
