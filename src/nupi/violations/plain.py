"""The Lagrangian of plain tensors, which most violations are: the sum of their terms, in as few operations as it takes.

`Dense.term` says what the term of a tensor is, and `Constraint.term` what it is by default: theta . c(x). Here stand
the two cases that need no more than that; whoever needs more, or gave something wrong, is sent on to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.constraints import Constraint

if TYPE_CHECKING:
    from collections.abc import Mapping

MANY = 8  # groups from which on one product of all of them is faster than one for each


def plain_total(
    loss: torch.Tensor,
    violations: Mapping[str, Any],
    multipliers: Mapping[str, Any],
    constraints: Mapping[str, Constraint],
) -> torch.Tensor | None:
    """The loss plus theta . c(x) of each violation; None if one of them is not a vector with a gradient.

    Args:
        loss: the objective f(x).
        violations: constraint name to c(x).
        multipliers: all multipliers of the problem, by constraint name.
        constraints: all constraints of the problem.
    """
    thetas, vectors = [], []
    for name, given in violations.items():
        constraint = constraints.get(name)
        if type(given) is not torch.Tensor or constraint is None:
            return None
        theta, kind = multipliers[name], type(constraint)
        if (
            given.shape != constraint.shape
            or given.dim() != 1
            or not given.requires_grad
            or given.dtype is not theta.dtype
            or given.device != theta.device
            or given.layout is not torch.strided
            or kind.term is not Constraint.term
            or kind.errors is not Constraint.errors
        ):
            return None
        thetas.append(theta)
        vectors.append(given)
    if len(vectors) >= MANY and len({(theta.dtype, theta.device) for theta in thetas}) == 1:
        return loss + torch.dot(torch.cat(thetas), torch.cat(vectors))
    for theta, vector in zip(thetas, vectors, strict=True):
        loss = loss + torch.dot(theta, vector)
    return loss
