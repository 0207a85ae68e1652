"""Expressions of rates: sums, differences, multiples, ratios, gaps, the largest and the smallest.

An expression is a vector: a rate has an entry for every class and group. It is declared once and measured on any
rows. Every measured value is an interval. Its ends are equal unless a hinge bounds the decisions, or rates have
confidence limits. Then interval arithmetic gives the interval of an expression from those of its parts, and a
constraint takes the end that is harder to meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nupi.rates.algebra import Gap
    from nupi.rates.constraint import Constraint
    from nupi.rates.rate import Leaf

Against: TypeAlias = Literal["groups", "overall"]
Side: TypeAlias = "tuple[Leaf, int, int]"
"""A rate, the number of an entry, and which bound of it: -1 the lower, 1 the upper."""
Read: TypeAlias = "Callable[[Leaf], Interval]"


class Interval(NamedTuple):
    """Bounds on each entry, and the smallest number of rows that a part of it was measured on (0: it has no value)."""

    lower: torch.Tensor
    upper: torch.Tensor
    rows: torch.Tensor


class Expression:
    """A vector of numbers that are measured on rows. Made by the functions of `nupi.rates`, not by hand.

    Add, subtract and divide expressions, multiply them by numbers, and bound them: `<=` and `>=` make a `Constraint`.

    Example:
        >>> from nupi import rates
        >>> logits, labels = torch.tensor([2.0, -1.0, 1.0, -3.0]), torch.tensor([1, 1, 0, 0])
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> (rates.false_positive_rate() / 2 + 0.1).measure([(logits, labels)])  # one of two negatives
        tensor([0.3500], dtype=torch.float64)
        >>> positive = rates.positive_rate(groups=2)
        >>> positive.names
        ('positive rate, group 0', 'positive rate, group 1')
        >>> positive.measure([(logits, labels, groups)])
        tensor([0.5000, 0.5000], dtype=torch.float64)
        >>> constraint = positive.gap() <= 0.05
    """

    size: int
    names: tuple[str, ...]

    def parts(self) -> tuple[Expression, ...]:
        """The expressions that it is made of."""
        raise NotImplementedError

    def interval(self, read: Read) -> Interval:
        """Its bounds, computed from those that `read` gives for each rate in it."""
        raise NotImplementedError

    def sides(self, end: int) -> set[Side]:
        """The bounds of rates from which its upper (end = 1) or lower (-1) bound is computed."""
        return set().union(*(part.sides(end) for part in self.parts()))

    def rates(self) -> tuple[Leaf, ...]:
        """The rates in it, each once."""
        return tuple(dict.fromkeys(rate for part in self.parts() for rate in part.rates()))

    @torch.no_grad()
    def measure(self, batches: Iterable[Any], *, hard: bool = True) -> torch.Tensor:
        """Its exact value over all rows of `batches`, NaN where it has none. No gradient flows.

        Args:
            batches: tuples of logits, labels, groups and weights (as many as are needed), one for each chunk of rows.
            hard: whether to measure decisions; otherwise the sigmoid of the logits.
        """
        from nupi.rates.decisions import Soft
        from nupi.rates.records import gather

        soft = None if hard else Soft("sigmoid", 1.0)
        records = gather({rate.record for rate in self.rates()}, batches, soft)
        found = self.interval(lambda rate: rate.read(records[rate.record], soft))
        return torch.where(found.rows > 0, found.upper, torch.nan)

    def at_most(self, bound: float) -> Constraint:
        """The constraint that every entry is at most `bound`."""
        from nupi.rates.constraint import Constraint

        return Constraint(self - number("bound", bound))

    def at_least(self, bound: float) -> Constraint:
        """The constraint that every entry is at least `bound`."""
        from nupi.rates.constraint import Constraint

        return Constraint(number("bound", bound) - self)

    def equals(self, value: float) -> Constraint:
        """The constraint that every entry is `value`, with a multiplier of either sign."""
        from nupi.rates.constraint import Constraint

        return Constraint(self - number("value", value), equality=True)

    def kind(self) -> NoReturn:
        """Refused: only a constraint has a kind. A bound makes a constraint of an expression."""
        raise TypeError(f"{self!r} has no bound yet; bound it first, as in (rate <= 0.05).kind()")

    def gap(self, against: Against = "groups") -> Gap:
        """The differences between every two entries, or (against="overall") between each and the rate of all rows.

        `rate.gap() <= 0.05` bounds the largest difference between any two groups, max - min (fairlearn calls it the
        difference). `rate.gap("overall") <= 0.05` bounds the difference of each group's rate and that of all rows.
        """
        from nupi.rates.algebra import Chosen, Gap

        if against == "overall":
            return Gap(self - self.overall())
        if against != "groups":
            raise ValueError(f"against={against!r}: choose 'groups' or 'overall'")
        if self.size < 2:
            raise ValueError("a gap needs at least 2 groups, but there is one; give the rate groups=")
        one, other = torch.triu_indices(self.size, self.size, offset=1).tolist()
        return Gap(Chosen(self, tuple(one)) - Chosen(self, tuple(other)))

    def overall(self) -> Expression:
        """The same rate of all rows, once for each entry."""
        raise TypeError(
            "only a rate itself has a rate of all rows; for an expression, subtract the value it should be near"
        )

    def max(self) -> Expression:
        """The largest of the entries that have a value."""
        from nupi.rates.algebra import Extreme

        return Extreme(self, end=1)

    def min(self) -> Expression:
        """The smallest of the entries that have a value."""
        from nupi.rates.algebra import Extreme

        return Extreme(self, end=-1)

    def __getitem__(self, which: int | slice) -> Expression:
        from nupi.rates.algebra import Chosen

        try:
            chosen = range(self.size)[which]
        except IndexError:
            raise IndexError(
                f"entry {which} was asked for, but there are {self.size}, from 0 to {self.size - 1}"
            ) from None
        return Chosen(self, tuple(chosen) if isinstance(chosen, range) else (chosen,))

    def __len__(self) -> int:
        return self.size

    def __add__(self, other: Expression | float) -> Expression:
        from nupi.rates.algebra import Affine, Sum

        return (
            Sum(self, other) if isinstance(other, Expression) else Affine(self, 1.0, number("a term", other))
        )

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1.0

    def __sub__(self, other: Expression | float) -> Expression:
        return self + -other

    def __rsub__(self, other: float) -> Expression:
        return -self + other

    def __mul__(self, factor: float) -> Expression:
        from nupi.rates.algebra import Affine

        if isinstance(factor, Expression):
            raise TypeError(
                "a product of two rates is not possible; take sums, differences, multiples and ratios"
            )
        return Affine(self, number("factor", factor), 0.0)

    __rmul__ = __mul__

    def __truediv__(self, other: Expression | float) -> Expression:
        from nupi.rates.algebra import Ratio

        return Ratio(self, other) if isinstance(other, Expression) else self * (1 / other)

    def __rtruediv__(self, other: float) -> Expression:
        from nupi.rates.algebra import Affine, Ratio

        return Ratio(Affine(self, 0.0, number("numerator", other)), self)

    def __abs__(self) -> Gap:
        from nupi.rates.algebra import Gap

        return Gap(self)

    def __le__(self, bound: Expression | float) -> Constraint:
        return (self - bound).at_most(0.0) if isinstance(bound, Expression) else self.at_most(bound)

    def __ge__(self, bound: Expression | float) -> Constraint:
        return (self - bound).at_least(0.0) if isinstance(bound, Expression) else self.at_least(bound)

    def __lt__(self, other: object) -> NoReturn:
        raise TypeError(
            "a constraint on rates is written with <= or >=; the largest of several is stack(...).max()"
        )

    __gt__ = __lt__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            raise TypeError(f"rates are not compared by ==; write .equals({other}) for an equality")
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression of rates is neither true nor false; measure it, or bound one side at a time"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.names[:3])}{', …' if self.size > 3 else ''}>"


def number(name: str, given: float) -> float:
    """A finite number; raises an error that names it otherwise."""
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ValueError(f"{name}={given!r} must be a finite number")
    return value
