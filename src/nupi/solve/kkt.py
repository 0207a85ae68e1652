"""How far a point and its multipliers are from the Karush-Kuhn-Tucker conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.solve.solution import Residuals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nupi.solve.problem import Problem


def kkt_residuals(
    problem: Problem, gradient: Iterable[torch.Tensor], e: torch.Tensor, theta: torch.Tensor
) -> Residuals:
    """The largest residual of each condition, for a batch of settings in the last dimension of all tensors.

    Args:
        problem: the problem.
        gradient: of the Lagrangian in each leaf of x.
        e: the errors, (multipliers, settings).
        theta: the multipliers, likewise.
    """
    stationarity = [part.reshape(-1, part.shape[-1]).abs().amax(0) for part in gradient]
    feasibility, complementarity = [], []
    start = 0
    for group in problem.groups:
        rows = slice(start, start + group.size)
        feasibility.append(group.constraint.infeasibility(e[rows]).amax(0))
        complementarity.append(group.constraint.slackness(theta[rows], e[rows]).amax(0))
        start += group.size
    return Residuals(*(torch.stack(each).amax(0) for each in (stationarity, feasibility, complementarity)))
