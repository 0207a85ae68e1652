"""A rate: a ratio of sums over rows, for every class and group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from nupi.rates.algebra import Chosen
from nupi.rates.expressions import Expression, Interval, Read, Side, number
from nupi.rates.groups import Groups

if TYPE_CHECKING:
    from nupi.rates.constraint import Constraint
    from nupi.rates.decisions import Soft
    from nupi.rates.records import Record, Sums


@dataclass(frozen=True, eq=False, repr=False)
class Leaf(Expression):
    """An expression that is computed from a record of rows.

    Args:
        name: its name.
        record: the kind of record that it is computed from.
    """

    name: str
    record: Record

    binomial = False  # whether it is a share of whole rows, and so has binomial confidence limits
    by_decisions = False  # whether its denominator depends on the decisions, as for precision

    @property
    def classes(self) -> int:
        """How many classes it has entries for."""
        return 1

    @cached_property
    def size(self) -> int:  # type: ignore[override]
        """One entry for each class and group; class c and group g are at c * groups + g."""
        return self.classes * self.record.groups.size

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The name of each entry."""
        classes = [f" of class {c}" for c in range(self.classes)] if self.classes > 1 else [""]
        return tuple(f"{self.name}{c}, {group}" for c in classes for group in self.record.groups.names)

    def parts(self) -> tuple[Expression, ...]:
        """It is made of rows, not of expressions."""
        return ()

    def rates(self) -> tuple[Leaf, ...]:
        """Itself."""
        return (self,)

    def sides(self, end: int) -> set[Side]:
        """All of its entries, at that end."""
        return {(self, entry, end) for entry in range(self.size)}

    def interval(self, read: Read) -> Interval:
        """The interval that `read` gives for it."""
        return read(self)

    def overall(self) -> Expression:
        """The same rate of all rows, once for each entry."""
        everybody = replace(self, record=replace(self.record, groups=Groups()))
        groups = self.record.groups.size
        return Chosen(everybody, tuple(c for c in range(self.classes) for _ in range(groups)))

    def read(self, record: torch.Tensor, soft: Soft | None) -> Interval:
        """Its value, or its bounds, computed from a record."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("size", "names")}


@dataclass(frozen=True, eq=False, repr=False)
class Rate(Leaf):
    """A ratio of sums; `top` and `bottom` weigh the columns tp, fp, pos, neg and loss of the record.

    Args:
        name: its name.
        record: the sums it is computed from.
        top: the weights of the columns in the numerator.
        bottom: the weights of the columns in the denominator.
        pooled: whether classes are added up first, so that all have one rate.
        binomial: whether it is a share of whole rows.
    """

    record: Sums
    top: tuple[float, ...] = ()
    bottom: tuple[float, ...] = ()
    pooled: bool = False
    binomial: bool = True

    @property
    def classes(self) -> int:
        """How many classes it has entries for."""
        return 1 if self.pooled else self.record.classes or 1

    @property
    def by_decisions(self) -> bool:  # type: ignore[override]
        """Whether its denominator depends on the decisions."""
        return any(self.bottom[:2])

    def at_most(self, bound: float) -> Constraint:
        """The constraint that every entry is at most `bound`."""
        return super().at_most(self._checked(bound))

    def at_least(self, bound: float) -> Constraint:
        """The constraint that every entry is at least `bound`."""
        return super().at_least(self._checked(bound))

    def _checked(self, bound: float) -> float:
        """Refuse a percentage: a share of rows is between 0 and 1."""
        if self.binomial and not 0 <= number("bound", bound) <= 1:
            raise ValueError(f"bound={bound}: the {self.name} is a share between 0 and 1; 5% is 0.05")
        return bound

    def shares(self, record: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numerator and denominator of each entry, (bounds, entries)."""
        if self.pooled:
            record = record.sum(1, keepdim=True)
        return _weighed(record, self.top).flatten(1), _weighed(record, self.bottom).flatten(1)

    def read(self, record: torch.Tensor, soft: Soft | None) -> Interval:  # noqa: ARG002  (the record knows)
        """Numerator over denominator; unknown where no row counts."""
        top, bottom = self.shares(record)
        known = bottom != 0  # a NaN counts as known, so that it is refused later
        values = top / torch.where(known, bottom, 1.0)
        return Interval(values[0], values[-1], bottom[0].detach().nan_to_num(nan=1.0))


def _weighed(record: torch.Tensor, weights: tuple[float, ...]) -> torch.Tensor:
    """A linear combination of the columns; a negative weight takes the opposite bound of a column."""
    total = torch.zeros_like(record[..., 0])
    for column, weight in enumerate(weights):
        if weight:
            values = record[..., column]
            total = total + weight * (values if weight > 0 else values.flip(0))
    return total
