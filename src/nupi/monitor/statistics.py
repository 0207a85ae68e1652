"""Statistics of a group of constraints, for many steps at once and without a look at any value.

Each function returns one row a step, with the columns of `columns.STATISTICS`.
"""

from __future__ import annotations

import torch


def of_whole(
    errors: torch.Tensor, multipliers: torch.Tensor, active: torch.Tensor, before: torch.Tensor | None
) -> torch.Tensor:
    """Statistics of steps that saw the whole group.

    Args:
        errors: the violations, (steps, constraints).
        multipliers: the multipliers after each step, (steps, constraints).
        active: 1 where a multiplier is not 0, else 0; the same shape.
        before: the multipliers before the first of these steps, if they are known.
    """
    # Twice a minimum and a maximum: `aminmax` over rows takes four times as long.
    low, high = errors.amin(1), errors.amax(1)
    least, most = multipliers.amin(1), multipliers.amax(1)
    moved = multipliers.diff(dim=0).norm(dim=1)
    first = torch.full_like(low[:1], torch.nan) if before is None else (multipliers[:1] - before).norm(dim=1)
    return torch.stack(
        [
            errors.mean(1),
            low,
            high,
            errors.norm(dim=1),
            multipliers.mean(1),
            least,
            most,
            multipliers.norm(dim=1),
            active.mean(1),
            torch.cat([first, moved]),
        ],
        dim=1,
    )


def of_parts(errors: torch.Tensor, multipliers: torch.Tensor, step: torch.Tensor, steps: int) -> torch.Tensor:
    """Statistics of steps that saw some constraints of the group each, over those that they saw.

    Args:
        errors: the violations of all these steps, one after another.
        multipliers: the multiplier of each of them.
        step: which of the `steps` each of them belongs to.
        steps: how many rows there are; one that nothing belongs to is nan.
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
            count.new_full((steps,), torch.nan),  # where they were before is not known
        ],
        dim=1,
    )
