"""A fast path for plain tensors, the most common violations: the sum of their terms in as few operations as possible.

In general `Dense.term` and `Constraint.term` compute the term of a tensor; by default it is theta . c(x). This module
handles two cases that need only this product. All other cases, and wrong input, go to those methods.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from nupi.constraints import Constraint

if TYPE_CHECKING:
    from collections.abc import Mapping

MANY = 8  # from this number of groups on, one product for all is faster than one product for each

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
        # All are joined to one vector, which would also accept a wrong shape or dtype.
        if len({*map(_KIND, thetas), *map(_KIND, vectors)}) == 1 and all(
            vector.dim() == 1 and vector.shape == theta.shape
            for theta, vector in zip(thetas, vectors, strict=True)
        ):
            return loss + torch.dot(torch.cat(thetas), torch.cat(vectors))
    try:
        for name, given in violations.items():
            # A single violation often comes as a scalar: `x.sum() - 1`.
            loss = loss + torch.dot(multipliers[name], given if given.dim() else given.reshape(1))
    except RuntimeError:  # they are not two vectors of the same size, dtype and device
        return None
    return loss
