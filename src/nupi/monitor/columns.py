"""The columns of a record: what is recorded of each group of constraints, and where."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.constraints import Constraint

WHOLE = 32  # a group with at most this many constraints is recorded constraint by constraint
WATCHED = 8  # of a larger group, its statistics and this many of its worst constraints are recorded

STATISTICS = (
    "violation_mean",
    "violation_min",
    "violation_max",
    "violation_norm",
    "multiplier_mean",
    "multiplier_min",
    "multiplier_max",
    "multiplier_norm",
    "active",  # the share of multipliers that are not 0
    "multiplier_step",  # the norm of the last change of the multipliers
)


@dataclass(frozen=True)
class Group:
    """One group of constraints: its name, kind and shape, and its columns."""

    name: str
    kind: str
    shape: tuple[int, ...]
    inequality: bool
    upper: float | None
    violations: int  # the first of `slots` columns
    multipliers: int
    slots: int  # how many constraints are kept one by one
    indices: int | None  # if only some are kept: the first of the columns that say which
    statistics: int | None  # the first column of the group's statistics, if it has more than one constraint

    @property
    def size(self) -> int:
        """How many constraints the group has."""
        return math.prod(self.shape)

    def place(self, index: int) -> str:
        """The name of one constraint of the group: `rates[3]`, or the group's name if it has only one."""
        if self.size == 1:
            return self.name
        at = []
        for length in reversed(self.shape):
            index, rest = divmod(index, length)
            at.append(str(rest))
        return f"{self.name}[{', '.join(reversed(at))}]"

    def index_of(self, place: str) -> int:
        """The index in the flattened group of a constraint named by `place`; 0 for the group's name."""
        index = 0
        if place != self.name:
            for length, at in zip(self.shape, place.rpartition("[")[2].rstrip("]").split(", "), strict=True):
                index = index * length + int(at)
        return index


class Columns:
    """The columns of a record. Groups that are recorded whole come first, so that one copy fills them all."""

    def __init__(self, groups: Mapping[str, Group], count: int) -> None:
        self.groups = dict(groups)
        self.count = count

    @classmethod
    def of(cls, constraints: Mapping[str, Constraint]) -> Columns:
        """The columns for these constraints."""
        sizes = {name: math.prod(constraint.multiplier_shape) for name, constraint in constraints.items()}
        one_by_one = sum(size for size in sizes.values() if size <= WHOLE)
        place, count = 0, 2 * one_by_one
        groups = {}
        for name, constraint in constraints.items():
            size = sizes[name]
            slots = size if size <= WHOLE else WATCHED
            violations, multipliers, indices, statistics = place, place + one_by_one, None, None
            if size <= WHOLE:
                place += size
            else:
                violations, multipliers, indices = count, count + slots, count + 2 * slots
                count += 3 * slots
            if size > 1:
                statistics = count
                count += len(STATISTICS)
            # A band has two multipliers for each violation, each of them like that of an inequality.
            bounds = constraint.bounds
            upper = None if bounds is None else bounds.upper
            groups[name] = Group(
                name,
                type(constraint).__name__,
                tuple(constraint.multiplier_shape),
                bounds is not None and not bounds.both,
                None if upper is None else float(upper),
                violations,
                multipliers,
                slots,
                indices,
                statistics,
            )
        return cls(groups, count)

    def group_of(self, place: str) -> str:
        """The name of the group of a constraint named by `Group.place`."""
        return place if place in self.groups else place.rpartition("[")[0]

    def described(self) -> dict[str, Any]:
        """The columns as plain data, for a checkpoint or a file."""
        return {"count": self.count, "groups": [asdict(group) for group in self.groups.values()]}

    @classmethod
    def from_described(cls, plain: Mapping[str, Any]) -> Columns:
        """The columns of the data that `described` returned."""
        groups = [Group(**{**group, "shape": tuple(group["shape"])}) for group in plain["groups"]]
        return cls({group.name: group for group in groups}, int(plain["count"]))
