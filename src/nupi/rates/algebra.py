"""Expressions made of other expressions. The bounds of each are computed from those of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.rates.expressions import Expression, Interval, Read, Side, number

if TYPE_CHECKING:
    from nupi.rates.constraint import Constraint


class Affine(Expression):
    """factor * expression + offset."""

    def __init__(self, one: Expression, factor: float, offset: float) -> None:
        self.one, self.factor, self.offset = one, factor, offset
        self.size = one.size
        self.names = tuple(_clipped(_affine(name, factor, offset)) for name in one.names)

    def parts(self) -> tuple[Expression, ...]:
        """The expression that is multiplied."""
        return (self.one,)

    def sides(self, end: int) -> set[Side]:
        """A negative factor exchanges lower and upper bounds."""
        return self.one.sides(end if self.factor > 0 else -end) if self.factor else set()

    def interval(self, read: Read) -> Interval:
        """A negative factor exchanges the ends."""
        a = self.one.interval(read)
        lower, upper = (end * self.factor + self.offset for end in a[:2])
        return Interval(lower, upper, a.rows) if self.factor >= 0 else Interval(upper, lower, a.rows)


class Sum(Expression):
    """The sum of two expressions; one with a single entry is added to every entry of the other."""

    def __init__(self, one: Expression, other: Expression) -> None:
        self.one, self.other = one, other
        self.size, pairs = _common(one, other)
        self.names = tuple(_clipped(f"{a} {_added(b)}") for a, b in pairs)

    def parts(self) -> tuple[Expression, ...]:
        """Both."""
        return self.one, self.other

    def interval(self, read: Read) -> Interval:
        """Lower plus lower, upper plus upper."""
        a, b = self.one.interval(read), self.other.interval(read)
        return Interval(a.lower + b.lower, a.upper + b.upper, torch.minimum(a.rows, b.rows))


class Ratio(Expression):
    """A ratio of expressions that are not negative; it has no value if the denominator may be 0."""

    def __init__(self, one: Expression, other: Expression) -> None:
        self.one, self.other = one, other
        self.size, pairs = _common(one, other)
        self.names = tuple(_clipped(f"{_whole(a)} / {_whole(b)}") for a, b in pairs)

    def parts(self) -> tuple[Expression, ...]:
        """Numerator and denominator."""
        return self.one, self.other

    def sides(self, end: int) -> set[Side]:
        """The denominator has the opposite side."""
        return self.one.sides(end) | self.other.sides(-end)

    def interval(self, read: Read) -> Interval:
        """Smallest numerator over largest denominator, largest over smallest."""
        a, b = self.one.interval(read), self.other.interval(read)
        known = ~(b.lower <= 0)  # a NaN is kept, so that it is refused later
        lower, upper = a.lower / torch.where(known, b.upper, 1.0), a.upper / torch.where(known, b.lower, 1.0)
        return Interval(lower, upper, torch.where(known, torch.minimum(a.rows, b.rows), 0.0))


class Chosen(Expression):
    """Some entries of an expression."""

    def __init__(self, one: Expression, entries: tuple[int, ...]) -> None:
        self.one, self.entries = one, entries
        self._kept: dict[torch.device, torch.Tensor] = {}
        self.size = len(entries)
        self.names = tuple(one.names[entry] for entry in entries)

    def parts(self) -> tuple[Expression, ...]:
        """The expression from which entries are chosen."""
        return (self.one,)

    def sides(self, end: int) -> set[Side]:
        """Only the chosen entries."""
        found = self.one.sides(end)
        return {side for side in found if side[0] is not self.one or side[1] in self.entries}

    def interval(self, read: Read) -> Interval:
        """The interval of the chosen entries."""
        a = self.one.interval(read)
        chosen = self._numbers(a.rows.device)
        return Interval(*(end.index_select(0, chosen) for end in a))

    def _numbers(self, device: torch.device) -> torch.Tensor:
        """The indices of the entries on a device. They are kept there, because a copy is slow."""
        if torch.compiler.is_compiling():
            return torch.tensor(self.entries, device=device)
        if device not in self._kept:
            self._kept[device] = torch.tensor(self.entries, device=device)
        return self._kept[device]


class Stack(Expression):
    """Several expressions as one vector."""

    def __init__(self, *several: Expression) -> None:
        self.several = several
        self.size = sum(one.size for one in several)
        self.names = tuple(name for one in several for name in one.names)

    def parts(self) -> tuple[Expression, ...]:
        """All of them."""
        return self.several

    def interval(self, read: Read) -> Interval:
        """The intervals of all parts, one after the other."""
        found = [one.interval(read) for one in self.several]
        return Interval(*(torch.cat(ends) for ends in zip(*found, strict=True)))


class Extreme(Expression):
    """The largest (end = 1) or smallest (-1) entry of an expression, among those that are known."""

    def __init__(self, one: Expression, *, end: int) -> None:
        self.one, self.end = one, end
        self.size, self.names = 1, (f"{'largest' if end == 1 else 'smallest'} of {one.names[0]} …",)

    def parts(self) -> tuple[Expression, ...]:
        """The expression with these entries."""
        return (self.one,)

    def interval(self, read: Read) -> Interval:
        """The extreme of the lower ends, and of the upper ends."""
        a = self.one.interval(read)
        known = a.rows > 0

        def extreme(values: torch.Tensor, end: int) -> torch.Tensor:
            most = torch.where(known, values * end, -torch.inf).max().view(1)
            return torch.where(known.any(), most * end, 0.0)

        return Interval(extreme(a.lower, self.end), extreme(a.upper, self.end), extreme(a.rows, -1))


class Gap(Expression):
    """The absolute value of a difference. A bound on it bounds the difference on both sides."""

    def __init__(self, one: Expression) -> None:
        self.one = one
        self.size, self.names = one.size, one.names

    def parts(self) -> tuple[Expression, ...]:
        """The difference."""
        return (self.one,)

    def sides(self, end: int) -> set[Side]:
        """Both sides of the difference."""
        return self.one.sides(end) | self.one.sides(-end)

    def interval(self, read: Read) -> Interval:
        """From 0, or the smaller absolute end, to the larger one."""
        a = self.one.interval(read)
        crosses = (a.lower <= 0) & (a.upper >= 0)
        low, high = (extreme(a.lower.abs(), a.upper.abs()) for extreme in (torch.minimum, torch.maximum))
        return Interval(torch.where(crosses, 0.0, low), high, a.rows)

    def at_most(self, bound: float) -> Constraint:
        """The constraint -bound <= difference <= bound: two inequalities per entry, first all upper ones."""
        if not number("bound", bound) >= 0:
            raise ValueError(f"bound={bound} must be >= 0: a gap is an absolute value")
        return Stack(self.one, -self.one).at_most(bound)

    def equals(self, value: float) -> Constraint:
        """The constraint that the difference is 0."""
        if value != 0:
            raise ValueError(
                f"value={value}: a gap is 0 or bounded; use at_most, or equals on the difference itself"
            )
        return self.one.equals(0.0)

    def at_least(self, bound: float) -> Constraint:
        """Refused: such a constraint can be met on either of two sides."""
        raise ValueError(
            f"a gap of at least {bound} is not a single constraint; bound the difference itself on one side"
        )

    def __le__(self, bound: Expression | float) -> Constraint:
        if isinstance(bound, Expression):
            return Stack(self.one - bound, -self.one - bound).at_most(0.0)
        return self.at_most(bound)

    def __ge__(self, bound: Expression | float) -> Constraint:
        raise ValueError(
            "a lower bound on a gap is not a single constraint; bound the difference itself on one side"
        )


def stack(*several: Expression) -> Expression:
    """Expressions as one vector: `stack(a, b).at_most(0.1)` bounds each of them, and so the largest.

    Example:
        >>> from nupi import rates
        >>> errors = stack(rates.false_positive_rate(), rates.false_negative_rate())
        >>> logits, labels = torch.tensor([2.0, 1.0, 1.0, -3.0]), torch.tensor([1, 1, 0, 0])
        >>> errors.measure([(logits, labels)])  # one of two negatives, none of two positives
        tensor([0.5000, 0.0000], dtype=torch.float64)
        >>> constraint = errors.at_most(0.1)  # two inequalities
    """
    if not several or not all(isinstance(one, Expression) for one in several):
        raise TypeError(f"stack takes expressions of rates, but {several!r} came")
    return Stack(*several)


def _common(one: Expression, other: Expression) -> tuple[int, list[tuple[str, str]]]:
    """The size of a combination of two expressions, and the names of both parts of each entry."""
    if 1 not in (one.size, other.size) and one.size != other.size:
        raise ValueError(
            f"expressions of {one.size} and {other.size} entries cannot be combined; choose entries with []"
        )
    size = max(one.size, other.size) if one.size and other.size else 0
    names = (each.names * (size if each.size == 1 else 1) for each in (one, other))
    return size, list(zip(*names, strict=True))


# --- names of entries, as one would write them ---

_LONGEST = 120


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 2]} …"


def _whole(name: str) -> str:
    """The name, in brackets if it has several terms."""
    return f"({name})" if any(sign in name for sign in (" + ", " - ", " / ")) else name


def _affine(name: str, factor: float, offset: float) -> str:
    scaled = name if factor == 1 else f"-{_whole(name)}" if factor == -1 else f"{factor:g} {_whole(name)}"
    if not offset:
        return scaled
    if scaled.startswith("-") and offset > 0:
        return f"{offset:g} {_added(scaled)}"
    return f"{scaled} {'-' if offset < 0 else '+'} {abs(offset):g}"


def _added(name: str) -> str:
    """A term of a sum, with its sign."""
    return f"- {name[1:]}" if name.startswith("-") else f"+ {name}"
