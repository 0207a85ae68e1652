"""Violations that are means, given as sums and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nupi.rule import rows_like
from nupi.violations.dense import Dense
from nupi.violations.kind import Parts, Violation
from nupi.violations.values import check_device, exact, host_may_read, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.constraints import Constraint
    from nupi.violations.kind import Move, Reduce
    from nupi.violations.target import Target


@dataclass(frozen=True, eq=False)
class Averaged(Violation):
    """A violation that is a mean, given as its parts: sums / counts, with one count for each row of the group.

    The parts of a batch, and the ranks of a distributed run, have different numbers of samples. A mean of their means
    would be wrong, but sums and counts can be added. The violation of constraint i is

        c_i = (sum of sums_i over all parts) / (sum of counts_i over all parts)

    A constraint whose count is 0 was not measured. Its multiplier does not move, and its sum is ignored.

    Args:
        sums: the sums, with the bound already subtracted from each sample. For a rate of a group of at most 0.3 it is
            the sum of `prediction - 0.3`. Shaped like the group.
        counts: the number of samples in each sum: of shape (rows,), or one number for all. Weights that are not whole
            numbers are possible too. No gradient flows into them.

    Example:
        >>> Averaged(sums=torch.tensor([1.5, 0.0]), counts=torch.tensor([3, 0]))
        Averaged(tensor([1.5000, 0.0000]) / tensor([3, 0]))
    """

    sums: torch.Tensor
    counts: torch.Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.sums, torch.Tensor) or not isinstance(self.counts, torch.Tensor):
            raise TypeError(
                f"Averaged takes two tensors, but sums is a {type(self.sums).__name__} and counts a "
                f"{type(self.counts).__name__}; wrap them in torch.tensor"
            )
        if self.counts.dim() and self.counts.shape != self.sums.shape[:1]:
            raise ValueError(
                f"counts has shape {tuple(self.counts.shape)} and sums {tuple(self.sums.shape)}; "
                "there must be one count per row of sums, or a single one for all"
            )

    def __repr__(self) -> str:
        return f"Averaged({self.sums.detach()} / {self.counts})"

    def term(self, target: Target) -> torch.Tensor:
        """The term of the means; rows with a count of 0 add nothing."""
        sums, counts = self.checked(target)
        mean = sums / rows_like(counts.masked_fill(counts == 0, 1), sums)
        theta, e = target.multiplier, target.constraint.errors(mean)
        # The mean of a row without samples is 0, but a tolerance or a penalty would still give it a term.
        present = rows_like((counts > 0).to(e.dtype), e)
        return target.constraint.term(theta * present, e * present, target.penalty)

    def error(self, target: Target) -> Move | None:
        """The errors of the means, for the rows with a count above 0."""
        sums, counts = self.checked(target)
        return _mean_error(target, sums.detach(), counts)

    def measured(self, constraint: Constraint) -> torch.Tensor | None:  # noqa: ARG002
        """The means, if every row has a count above 0."""
        counts = self.counts.expand(self.sums.shape[:1])
        return None if bool((counts == 0).any()) else (self.sums / rows_like(counts, self.sums)).detach()

    def detached(self) -> Averaged:
        """Sums and counts without their graph."""
        return Averaged(self.sums.detach(), self.counts.detach())

    @classmethod
    def average(cls, several: Sequence[Averaged], batches: int, constraint: Constraint | None) -> Averaged:  # noqa: ARG003
        """All sums, divided by all counts."""
        sums = torch.stack([wide(each.sums) for each in several]).sum(0)
        # Counts may be weights, or narrow integers: they are added in a type that holds them.
        return Averaged(sums, torch.stack([each.counts.to(sums.dtype) for each in several]).sum(0))

    def parts(self, target: Target) -> Parts:
        """Sums and counts."""
        sums, counts = self.checked(target)
        return Parts(exact(sums), exact(counts))

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move | None:  # noqa: ARG003
        """The mean over all processes."""
        assert total.weights is not None
        return _mean_error(target, total.values, total.weights)

    def checked(self, target: Target) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums shaped like the group, 0 for rows with a count of 0, and one count for each row."""
        sums = Dense(self.sums).checked(target)
        # Narrow sums, as from autocast, would round the counts: bfloat16 cannot represent 257.
        sums = wide(sums)
        counts = self.counts.detach()
        check_device(f"the counts of {target.name!r}", counts, target)
        if counts.is_complex() or counts.dtype == torch.bool:
            raise TypeError(f"the counts of {target.name!r} are {counts.dtype}; they must be numbers")
        counts = counts.to(sums.dtype).expand(target.constraint.shape[:1])
        good = (counts >= 0) & (counts < torch.inf)
        if not host_may_read(counts):
            sums = torch.where(rows_like(good, sums), sums, torch.nan)
            counts = torch.where(good, counts, 1.0)
        elif not bool(good.all()):
            raise ValueError(
                f"the counts of {target.name!r} must be finite and >= 0, but {counts.tolist()} came"
            )
        return sums.masked_fill(rows_like(counts == 0, sums), 0.0), counts


def _mean_error(target: Target, sums: torch.Tensor, counts: torch.Tensor) -> Move | None:
    """The errors of sums / counts, without the rows with a count of 0. Reads the values of the counts."""
    present = counts > 0
    if torch.compiler.is_compiling():
        # The number of rows would depend on the counts. So all rows move, and those with a count of 0 are restored.
        mean = sums / rows_like(torch.where(present, counts, 1.0), sums)
        return target.move(target.constraint.errors(mean), mask=present, fresh=True)
    rows = None if bool(present.all()) else present.reshape(-1).nonzero().squeeze(1)
    if rows is not None:
        if not len(rows):
            return None
        sums, counts = sums.index_select(0, rows), counts.index_select(0, rows)
    error = target.constraint.errors(sums / rows_like(counts, sums))
    return target.move(error, rows, partial=True, fresh=True)
