"""Violations of some of a group's constraints, such as those that a batch shows: values, and which constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from nupi.rule import rows_like
from nupi.violations.kind import Parts, Violation
from nupi.violations.values import check_device, check_values, exact, host_may_read, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.constraints import Constraint
    from nupi.violations.kind import Move, Reduce
    from nupi.violations.target import Target


@dataclass(frozen=True, eq=False)
class Indexed(Violation):
    """Violations of some constraints of a group, such as those of a batch. A step costs what the batch costs.

    With v_k the values and i_k the indices,

        L(x, theta) = f(x) + sum over k of theta[i_k] v_k

    Args:
        values: the violations of these constraints, one for each: shaped like `group[indices]`.
        indices: the numbers of these constraints: a 1-D integer tensor. If an index occurs twice, both values are added
            to that constraint's violation, as they are in the gradient of the Lagrangian.

    Example:
        >>> Indexed(torch.tensor([0.5, -0.1]), torch.tensor([7, 2]))
        Indexed(2 values at [7, 2])
    """

    by_rows: ClassVar[bool] = True

    values: torch.Tensor
    indices: torch.Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.values, torch.Tensor) or not isinstance(self.indices, torch.Tensor):
            raise TypeError(
                f"Indexed takes two tensors, but values is a {type(self.values).__name__} and indices a "
                f"{type(self.indices).__name__}; wrap them in torch.tensor"
            )
        if self.indices.dtype == torch.bool:
            raise TypeError(
                "indices is a boolean mask; pass the positions instead: mask.nonzero().squeeze(1), "
                "with values[mask] if the values are of the whole group"
            )
        if self.indices.is_floating_point() or self.indices.is_complex():
            raise TypeError(f"indices must be integers, but they are {self.indices.dtype}; use .long()")
        if self.indices.dim() != 1 or self.values.dim() < 1 or len(self.values) != len(self.indices):
            raise ValueError(
                f"indices has shape {tuple(self.indices.shape)} and values {tuple(self.values.shape)}; "
                "there must be one row of values per index"
            )

    def __repr__(self) -> str:
        few = self.indices[:8].tolist()
        more = ", …" if len(self.indices) > len(few) else ""
        return f"Indexed({len(self.indices)} values at [{', '.join(map(str, few))}{more}])"

    def term(self, target: Target) -> torch.Tensor:
        """The sum of theta . c(x) over these rows."""
        values, rows = self.checked(target)
        theta = target.multiplier.index_select(0, rows)
        return target.constraint.term(theta, target.constraint.errors(values), target.penalty)

    def error(self, target: Target) -> Move:
        """The errors of these rows; the errors of a row that occurs several times are added."""
        values, rows = self.checked(target)
        return self.added_up(target, values.detach(), rows)

    def measured(self, constraint: Constraint) -> torch.Tensor | None:
        """The values, if every row of the group is among them."""
        return self.values.detach() if len(self.indices.unique()) == constraint.shape[0] else None

    def adds_up(self, reduce: Reduce) -> bool:  # noqa: ARG002
        """Rows of all processes are added, with either value of `reduce`."""
        return True

    def detached(self) -> Indexed:
        """The values without their graph."""
        return Indexed(self.values.detach(), self.indices)

    @classmethod
    def average(
        cls, several: Sequence[Indexed], batches: int, constraint: Constraint | None
    ) -> Indexed | None:
        """All rows, divided by the number of micro-batches; None if the errors are not the violations themselves."""
        if constraint is not None and constraint.multiplier_shape != constraint.shape:
            return None
        values = torch.cat([wide(each.values) for each in several]) / batches
        return Indexed(values, torch.cat([each.indices for each in several]))

    def parts(self, target: Target) -> Parts:
        """The values added into a tensor of the group's shape, and how often each row occurs."""
        values, rows = self.checked(target)
        values, shape = exact(values), target.constraint.shape
        whole, count = values.new_zeros(shape), values.new_zeros(shape[:1])
        whole.index_add_(0, rows, values)
        count.index_add_(0, rows, torch.ones_like(rows, dtype=values.dtype))
        return Parts(whole, count)

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move | None:  # noqa: ARG003
        """The errors of the rows that any process had."""
        assert total.weights is not None
        rows = total.weights.nonzero().squeeze(1)
        if not len(rows):
            return None
        values = total.values.index_select(0, rows)
        # An error is affine in the violation: the total of n values has its constant part once, but needs it n times.
        missing = target.constraint.errors(torch.zeros_like(values))
        times = total.weights.index_select(0, rows) - 1
        return target.move(target.constraint.errors(values) + rows_like(times, missing) * missing, rows)

    @classmethod
    def added_up(cls, target: Target, values: torch.Tensor, rows: torch.Tensor) -> Move:
        """The errors of rows that may occur several times, with one total for each row."""
        error = target.constraint.errors(values).to(target.multiplier.dtype)
        if torch.compiler.is_compiling():
            error, rows = _totals(error, rows)
        else:
            whole = torch.sparse_coo_tensor(
                rows.unsqueeze(0), error, target.multiplier.shape, check_invariants=False
            ).coalesce()
            error, rows = whole.values(), whole.indices()[0]
        return target.move(error, rows)

    def checked(self, target: Target) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and int64 indices; refused unless the indices are in the group and the values fit its rows."""
        values, rows, shape = self.values, self.indices, target.constraint.shape
        check_values(target, values)
        check_device(f"the indices of {target.name!r}", rows, target)
        if not shape or values.shape[1:] != shape[1:]:
            raise ValueError(
                f"the values of {target.name!r} have shape {tuple(values.shape)}, which are not rows of its group of "
                f"shape {tuple(shape)}; give one row of the group per index"
            )
        rows = rows.to(torch.int64)
        if host_may_read(rows):
            low, high = torch.aminmax(rows) if len(rows) else (0, 0)
            if low < 0 or high >= shape[0]:
                raise IndexError(
                    f"the indices of {target.name!r} run from {int(low)} to {int(high)}, but its constraints are "
                    f"numbered 0 to {shape[0] - 1}; check them, or make the group larger"
                )
            return values, rows
        # If the host may not read values, a wrong index becomes a violation that is not finite, which is refused.
        inside = (rows >= 0) & (rows < shape[0])
        return torch.where(rows_like(inside, values), values, torch.nan), torch.where(inside, rows, 0)


def _totals(error: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The total of a row, at each place where the row occurs. These shapes do not depend on values (for compiling)."""
    rows, order = torch.sort(rows, stable=True)
    new = torch.ones_like(rows)
    new[1:] = rows[1:] != rows[:-1]
    number = new.cumsum(0) - 1
    totals = torch.zeros_like(error).index_add(0, number, error.index_select(0, order))
    return totals.index_select(0, number), rows
