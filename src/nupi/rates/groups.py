"""The groups that a rate is taken over: all rows, the groups of one attribute or several, or their intersections.

    None                         all rows: one rate
    5                            group numbers 0 to 4, one per row; or a boolean matrix (rows, 5) if groups overlap
    {"sex": 2, "race": 5}        the groups of each attribute: 2 + 5 rates
    crossed(sex=2, race=5)       every combination of them: 2 x 5 rates

Each batch comes with a tensor of group numbers for one attribute, or with a mapping from the same names to tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from nupi.optim.checks import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

Numbers: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor]"
"""The group number of each row, or the numbers of several attributes by name; or a boolean matrix (rows, groups)."""


@dataclass(frozen=True)
class Groups:
    """The groups that rates are taken over: attributes with how many values each has.

    Args:
        attributes: name and number of groups of each attribute; the name "" is for a single one without a name.
        crossed: whether the groups are the combinations of the attributes, not those of each.

    Example:
        >>> Groups.of({"sex": 2, "race": 5})
        Groups(attributes=(('sex', 2), ('race', 5)), crossed=False)
    """

    attributes: tuple[tuple[str, int], ...] = ()
    crossed: bool = False

    @classmethod
    def of(cls, groups: int | Mapping[str, int] | Groups | None) -> Groups:
        """What a user may write for it."""
        if groups is None:
            return cls()
        if isinstance(groups, Groups):
            return groups
        if isinstance(groups, Mapping):
            if not groups:
                raise ValueError("groups={} names no attribute; leave out groups to measure all rows")
            return cls(
                tuple((str(name), whole(f"groups[{name!r}]", count)) for name, count in groups.items())
            )
        return cls((("", whole("groups", groups)),))

    @property
    def size(self) -> int:
        """How many groups there are; everybody is one."""
        counts = [count for _, count in self.attributes]
        return math.prod(counts) if self.crossed or not counts else sum(counts)

    @property
    def names(self) -> tuple[str, ...]:
        """What to call each group in a message."""
        if not self.attributes:
            return ("everybody",)
        if not self.crossed:
            return tuple(f"{name or 'group'} {i}" for name, count in self.attributes for i in range(count))
        combined: list[tuple[str, ...]] = [()]
        for name, count in self.attributes:
            combined = [(*before, f"{name} {i}") for before in combined for i in range(count)]
        return tuple(" & ".join(parts) for parts in combined)

    def sum(self, parts: torch.Tensor, numbers: Numbers | None) -> torch.Tensor:
        """Add up `parts` (rows, ...) by group, to (groups, ...); no loop over the groups."""
        rows = len(parts)
        if not self.attributes:
            return parts.sum(0, keepdim=True)
        if isinstance(numbers, torch.Tensor) and numbers.dtype == torch.bool:
            self._check_members(numbers, rows)
            return torch.einsum("rg,r...->g...", numbers.to(parts.dtype), parts)
        total = parts.new_zeros(self.size, *parts.shape[1:])
        for column in self._columns(numbers, rows):
            total = total.index_add(0, column, parts)
        return total

    def members(self, numbers: Numbers | None, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Which row belongs to which group, as a matrix (rows, groups) of 0 and 1."""
        if not self.attributes:
            return like.new_ones(rows, 1)
        if isinstance(numbers, torch.Tensor) and numbers.dtype == torch.bool:
            self._check_members(numbers, rows)
            return numbers.to(like.dtype)
        belongs = like.new_zeros(rows, self.size)
        for column in self._columns(numbers, rows):
            belongs = belongs.scatter(1, column.unsqueeze(1), 1.0)
        return belongs

    def _columns(self, numbers: Numbers | None, rows: int) -> Sequence[torch.Tensor]:
        """The group number of each row: one column per attribute, or a single column if they are crossed."""
        columns = [
            _checked(name, count, self._of(name, numbers), rows).long() for name, count in self.attributes
        ]
        if self.crossed:
            number = columns[0]
            for column, (_, count) in zip(columns[1:], self.attributes[1:], strict=True):
                number = number * count + column
            return [number]
        start, shifted = 0, []
        for column, (_, count) in zip(columns, self.attributes, strict=True):
            shifted.append(column + start if start else column)
            start += count
        return shifted

    def _of(self, name: str, numbers: Numbers | None) -> object:
        wanted = ", ".join(repr(each) for each, _ in self.attributes if each)
        if numbers is None:
            raise ValueError(
                f"groups=None came with the rows, but these rates are of {self.size} groups"
                + (f", of the attributes {wanted}" if wanted else "")
                + "; give the group number of each row"
            )
        if not name:
            return numbers
        if not isinstance(numbers, Mapping):
            raise TypeError(
                f"groups must map the attributes {wanted} to group numbers, but a {type(numbers).__name__} came"
            )
        if name not in numbers:
            raise KeyError(
                f"groups has no {name!r}; it has {', '.join(map(repr, numbers))}, and needs {wanted}"
            )
        return numbers[name]

    def _check_members(self, numbers: torch.Tensor, rows: int) -> None:
        if numbers.shape != (rows, self.size):
            raise ValueError(
                f"groups is a boolean matrix of shape {tuple(numbers.shape)}, not (rows, groups) = {(rows, self.size)}"
            )


def crossed(**attributes: int) -> Groups:
    """The intersections of several attributes: a group for every combination of their values.

    >>> crossed(sex=2, race=5).size, crossed(sex=2, race=5).names[7]
    (10, 'sex 1 & race 2')
    """
    if len(attributes) < 2:
        raise ValueError(f"crossed needs at least two attributes, but {attributes} came")
    return Groups(Groups.of(attributes).attributes, crossed=True)


def may_look(rows: torch.Tensor) -> bool:
    """Whether to check values. Not on a device, which would have to be waited for, nor in a compiled graph."""
    return rows.device.type == "cpu" and rows.numel() > 0 and not torch.compiler.is_compiling()


def as_tensor(name: str, given: object) -> torch.Tensor:
    """The tensor itself; raises an error that names what came instead."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(
            f"{name} must be a tensor, but a {type(given).__name__} came; use torch.as_tensor({name})"
        )
    return given


def _checked(name: str, count: int, given: object, rows: int) -> torch.Tensor:
    what = f"groups[{name!r}]" if name else "groups"
    numbers = as_tensor(what, given)
    if numbers.shape != (rows,):
        raise ValueError(f"{what} has shape {tuple(numbers.shape)}, not one number per row, ({rows},)")
    if numbers.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{what} has dtype {numbers.dtype}; group numbers are int64: use .long()")
    if may_look(numbers):
        low, high = (int(end) for end in numbers.aminmax())
        if low < 0 or high >= count:
            raise IndexError(f"{what} runs from {low} to {high}, but the groups are 0 to {count - 1}")
    return numbers
