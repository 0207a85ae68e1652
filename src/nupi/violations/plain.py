"""The Lagrangian of plain tensors, which most violations are: the sum of their terms, in as few operations as it takes.

`Dense.term` says what the term of a tensor is, and `Constraint.term` what it is by default: theta . c(x). Here stand
the two cases that need no more than that; whoever needs more, or gave something wrong, is sent on to them.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from nupi.constraints import Constraint

if TYPE_CHECKING:
    from collections.abc import Mapping

MANY = 8  # groups from which on one product of all of them is faster than one for each

_KIND = attrgetter("dtype", "layout", "device")


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
    for name, given in violations.items():
        constraint = constraints.get(name)
        if type(given) is not torch.Tensor or constraint is None or not given.requires_grad:
            return None
        kind = type(constraint)
        if kind.term is not Constraint.term or kind.errors is not Constraint.errors:
            return None
    if len(violations) >= MANY:
        thetas, vectors = [*map(multipliers.__getitem__, violations)], [*violations.values()]
        # All are joined to one vector, which would also take what is of another shape or dtype.
        if len({*map(_KIND, thetas), *map(_KIND, vectors)}) == 1 and all(
            vector.dim() == 1 and vector.shape == theta.shape
            for theta, vector in zip(thetas, vectors, strict=True)
        ):
            return loss + torch.dot(torch.cat(thetas), torch.cat(vectors))
    try:
        for name, given in violations.items():
            loss = loss + torch.dot(multipliers[name], given)
    except RuntimeError:  # they are no two vectors of one size, dtype and device
        return None
    return loss
