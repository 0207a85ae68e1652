"""Statistics of a group of constraints for many steps at once. No value is copied to the host.

Each function returns one row per step, with the columns of `columns.STATISTICS`.
"""

from __future__ import annotations

import torch
from torch.linalg import vector_norm


def of_whole(both: torch.Tensor, active: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Statistics of steps that had all constraints of the group.

    Args:
        both: the violations, and the multipliers after each step, (steps, 2, constraints).
        active: the share of multipliers that are not 0 after each step, (steps,).
        moved: how far the multipliers moved in each step, (steps,).
    """
    # `amin` and `amax`, because `aminmax` over rows takes four times as long.
    of_both = torch.stack([both.mean(2), both.amin(2), both.amax(2), vector_norm(both, dim=2)], dim=2)
    return torch.cat([of_both.flatten(1), active[:, None], moved[:, None]], dim=1)


def active(multipliers: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """The share of the multipliers that are not 0 in each of these steps, (steps,).

    Args:
        multipliers: (steps, constraints).
        scratch: memory of the same shape, which is overwritten.
    """
    # Summing ones and zeros is ten times as fast in a float type as in bool.
    signs = torch.sign(multipliers, out=scratch)
    count: torch.Tensor = vector_norm(signs, 1, dim=1)
    return count.div_(multipliers.shape[1])


def moved(multipliers: torch.Tensor, before: torch.Tensor | None, scratch: torch.Tensor) -> torch.Tensor:
    """How far the multipliers moved in each of these steps, (steps,), the norm of the difference.

    Args:
        multipliers: the multipliers after each step, (steps, constraints).
        before: the multipliers before the first of these steps, if they are known.
        scratch: memory of the same shape, which is overwritten.
    """
    if before is None:
        scratch[0].fill_(torch.nan)
    else:
        torch.sub(multipliers[0], before, out=scratch[0])
    torch.sub(multipliers[1:], multipliers[:-1], out=scratch[1:])
    length: torch.Tensor = vector_norm(scratch, dim=1)
    return length


def of_parts(errors: torch.Tensor, multipliers: torch.Tensor, step: torch.Tensor, steps: int) -> torch.Tensor:
    """Statistics of steps that had only some constraints of the group, over those constraints.

    Args:
        errors: the violations of all these steps, one after another.
        multipliers: the multiplier of each violation.
        step: the step of each violation, from 0 to `steps` - 1.
        steps: the number of rows; a row without violations is nan.
    """
    ones = torch.ones_like(errors)

    def total(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(steps).index_add_(0, step, values)

    def extreme(values: torch.Tensor, which: str) -> torch.Tensor:
        start = values.new_full((steps,), torch.nan)
        return start.scatter_reduce_(0, step, values, which, include_self=False)

    count = total(ones)
    return torch.stack(
        [
            total(errors) / count,
            extreme(errors, "amin"),
            extreme(errors, "amax"),
            total(errors.square()).sqrt().where(count > 0, torch.nan),
            total(multipliers) / count,
            extreme(multipliers, "amin"),
            extreme(multipliers, "amax"),
            total(multipliers.square()).sqrt().where(count > 0, torch.nan),
            total((multipliers != 0).to(errors.dtype)) / count,
            count.new_full((steps,), torch.nan),  # the multipliers before are not known
        ],
        dim=1,
    )
