"""How far a point and its multipliers are from the Karush-Kuhn-Tucker conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.solve.solution import Residuals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nupi.solve.problem import Group, Problem


def kkt_residuals(
    problem: Problem, gradient: Iterable[torch.Tensor], e: torch.Tensor, theta: torch.Tensor
) -> Residuals:
    """The largest residual of each condition, for a batch of settings in the last dimension of all tensors.

    Args:
        problem: the problem.
        gradient: the gradient of the Lagrangian in each leaf of x.
        e: the errors, (multipliers, settings).
        theta: the multipliers, (multipliers, settings).
    """
    stationarity = [part.reshape(-1, part.shape[-1]).abs().amax(0) for part in gradient]
    complementarity = [
        group.constraint.slackness(theta[rows], e[rows]).amax(0) for group, rows in _rows(problem)
    ]
    return Residuals(_most(stationarity), infeasibility(problem, e).amax(0), _most(complementarity))


def infeasibility(problem: Problem, e: torch.Tensor) -> torch.Tensor:
    """By how much each constraint is violated, (multipliers, settings)."""
    return torch.cat([group.constraint.infeasibility(e[rows]) for group, rows in _rows(problem)])


def _rows(problem: Problem) -> Iterator[tuple[Group, slice]]:
    """Each group, and the slice of its errors."""
    start = 0
    for group in problem.groups:
        yield group, slice(start, start + group.size)
        start += group.size


def _most(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).amax(0)
