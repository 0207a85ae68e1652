"""Violations as they come from a user's loop, checked against the multipliers they belong to."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from nupi.ascent import finite as guard
from nupi.constraints import Averaged, Indexed
from nupi.optim.tensors import rows_like

Violation: TypeAlias = "torch.Tensor | Indexed | Averaged"


class Move(NamedTuple):
    """One group of multipliers with the error that is to move it."""

    name: str
    multiplier: torch.Tensor
    error: torch.Tensor  # shaped like the multiplier; or, if only some rows were seen, those rows
    rows: (
        torch.Tensor | None
    )  # which rows they are; one that comes twice (where compiled) has the same error twice
    seen: torch.Tensor | None = None  # if rows is None, a mask of those to move; None means all
    averaged: bool = (
        False  # whether the rows that are not here were not seen, and must stay whatever moves them
    )


def weighted(name: str, multiplier: torch.Tensor, violation: Violation) -> torch.Tensor:
    """What a group adds to the Lagrangian, theta . c(x), in float32 or wider even under autocast."""
    if isinstance(violation, Indexed):
        values, rows = checked_rows(name, multiplier, violation)
        multiplier = multiplier.index_select(0, rows)
    elif isinstance(violation, Averaged):
        sums, counts = checked_average(name, multiplier, violation)
        values = sums / rows_like(counts.masked_fill(counts == 0, 1), sums)
    else:
        values = checked(name, multiplier, violation)
    if values.dim() == 1 and values.dtype == multiplier.dtype:
        return torch.dot(multiplier, values)
    return (multiplier * values).sum()


def as_move(name: str, multiplier: torch.Tensor, violation: Violation) -> Move | None:
    """The error of a group of multipliers, in their dtype and without its graph; None if nothing was seen."""
    if isinstance(violation, Indexed):
        return gathered(name, multiplier, *checked_rows(name, multiplier, violation))
    if isinstance(violation, Averaged):
        return averaged(name, multiplier, *checked_average(name, multiplier, violation))
    error = checked(name, multiplier, violation).detach()
    if error.dtype != multiplier.dtype:
        error = error.to(multiplier.dtype)
    return Move(name, multiplier, error, None)


def gathered(name: str, multiplier: torch.Tensor, values: torch.Tensor, rows: torch.Tensor) -> Move:
    """The error of rows that may come more than once, added up so that each comes once."""
    if torch.compiler.is_compiling():
        return Move(name, multiplier, *_totals(values.detach().to(multiplier.dtype), rows))
    seen = sparse_rows(multiplier, rows, values.detach().to(multiplier.dtype)).coalesce()
    return Move(name, multiplier, seen.values(), seen.indices()[0])


def _totals(values: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in shapes that a graph can know beforehand: each row with its total wherever it comes."""
    rows, order = torch.sort(rows, stable=True)
    new = torch.ones_like(rows)
    new[1:] = rows[1:] != rows[:-1]
    number = new.cumsum(0) - 1
    totals = torch.zeros_like(values).index_add(0, number, values.index_select(0, order))
    return totals.index_select(0, number), rows


def averaged(name: str, multiplier: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> Move | None:
    """The error sums / counts without the rows that nothing was counted for. Costs a look at the counts."""
    sums, seen = sums.detach(), counts > 0
    if torch.compiler.is_compiling():
        # How many rows there are would depend on the counts: all are moved, and those not seen are put back.
        error = sums / rows_like(torch.where(seen, counts, 1.0), sums)
        return Move(name, multiplier, error.to(multiplier.dtype), None, seen)
    rows = None if bool(seen.all()) else seen.reshape(-1).nonzero().squeeze(1)
    if rows is not None:
        if not len(rows):
            return None
        sums, counts = sums.index_select(0, rows), counts.index_select(0, rows)
    error = (sums / rows_like(counts, sums)).to(multiplier.dtype)
    return Move(name, multiplier, error, rows, averaged=True)


def as_sparse_gradient(move: Move) -> torch.Tensor:
    """The error of some rows as the sparse gradient that a torch optimizer expects."""
    assert move.rows is not None
    return sparse_rows(move.multiplier, move.rows, move.error, coalesced=True)


def sparse_rows(
    like: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, *, coalesced: bool = False
) -> torch.Tensor:
    """A tensor shaped like `like` that has `values` in some rows and nothing elsewhere."""
    return torch.sparse_coo_tensor(
        rows.unsqueeze(0), values, like.shape, check_invariants=False, is_coalesced=coalesced
    )


def checked(name: str, multiplier: torch.Tensor, violation: torch.Tensor) -> torch.Tensor:
    """The violation, refused unless it has its group's shape; a scalar may stand for a single constraint."""
    if not isinstance(violation, torch.Tensor):
        raise TypeError(
            f"the violation of {name!r} must be a tensor, Indexed or Averaged, but it is a {type(violation).__name__}"
        )
    if violation.layout != torch.strided:
        raise TypeError(
            f"the violation of {name!r} is a sparse tensor; give its parts as Indexed(values, indices)"
        )
    if violation.dtype != multiplier.dtype or violation.device != multiplier.device:
        _check_values(name, multiplier, violation)
    if violation.shape == multiplier.shape:
        return violation
    if violation.dim() == 0 and multiplier.numel() == 1:
        return violation.reshape(multiplier.shape)
    raise ValueError(
        f"the violation of {name!r} has shape {tuple(violation.shape)}, but its group has shape "
        f"{tuple(multiplier.shape)}; violations are never broadcast: give one per constraint, or Indexed"
    )


def checked_rows(
    name: str, multiplier: torch.Tensor, violation: Indexed
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices, refused unless the indices lie in the group and the values fit its rows."""
    values, rows = violation.values, violation.indices
    _check_values(name, multiplier, values)
    _check_device(f"the indices of {name!r}", rows, multiplier)
    if multiplier.dim() == 0 or values.shape[1:] != multiplier.shape[1:]:
        raise ValueError(
            f"the values of {name!r} have shape {tuple(values.shape)}, which are not rows of its group of "
            f"shape {tuple(multiplier.shape)}; give one row of the group per index"
        )
    rows = rows.to(torch.int64)
    count = len(multiplier)
    if guard.free_to_look(rows):
        low, high = (int(end) for end in torch.aminmax(rows)) if len(rows) else (0, 0)
        if low < 0 or high >= count:
            raise IndexError(
                f"the indices of {name!r} run from {low} to {high}, but its constraints are numbered "
                f"0 to {count - 1}; check them, or make the group larger"
            )
        return values, rows
    # Where the host may not look, a wrong index becomes a violation that is not finite, and is refused so.
    inside = (rows >= 0) & (rows < count)
    broad = inside.view(-1, *(1,) * (values.dim() - 1))
    return torch.where(broad, values, torch.nan), torch.where(inside, rows, 0)


def checked_average(
    name: str, multiplier: torch.Tensor, violation: Averaged
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums shaped like the group, 0 where nothing was counted, and a count for each of its rows."""
    sums = checked(name, multiplier, violation.sums)
    # Narrow sums, as autocast makes them, would round the counts: bfloat16 knows no 257.
    sums = sums.to(torch.promote_types(sums.dtype, torch.float32))
    counts = violation.counts.detach()
    _check_device(f"the counts of {name!r}", counts, multiplier)
    if counts.is_complex() or counts.dtype == torch.bool:
        raise TypeError(f"the counts of {name!r} are {counts.dtype}; they must be numbers")
    counts = counts.to(sums.dtype).expand(multiplier.shape[:1])
    good = (counts >= 0) & (counts < torch.inf)
    if not guard.free_to_look(counts):
        sums, counts = torch.where(rows_like(good, sums), sums, torch.nan), torch.where(good, counts, 1.0)
    elif not bool(good.all()):
        raise ValueError(f"the counts of {name!r} must be finite and >= 0, but {counts.tolist()} came")
    return sums.masked_fill(rows_like(counts == 0, sums), 0.0), counts


def _check_values(name: str, multiplier: torch.Tensor, values: torch.Tensor) -> None:
    if not values.is_floating_point():
        fix = "take its real part" if values.is_complex() else "use .float()"
        raise TypeError(f"the violation of {name!r} is {values.dtype}, not floating-point; {fix}")
    _check_device(f"the violation of {name!r}", values, multiplier)


def _check_device(what: str, tensor: torch.Tensor, multiplier: torch.Tensor) -> None:
    if tensor.device != multiplier.device:
        raise ValueError(
            f"{what} is on {tensor.device}, but its multiplier is on {multiplier.device}; "
            f"move the multipliers with lagrangian.to({str(tensor.device)!r})"
        )
