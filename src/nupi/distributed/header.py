"""The header of the message that every rank sends at every step: its fields, and their places among the numbers.

The message is summed over ranks. If each rank has its own value of a field, the field has one place for every rank, and
the other ranks write 0 there. A field that is counted has one place. The layout depends on the constraints alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nupi.distributed.fingerprint import of_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nupi.violations import Violation


@dataclass
class Brought:
    """What one rank tells the others in a step."""

    refused: bool = False  # whether it refused its own input
    changed: bool = False  # whether anyone but ascend wrote to its multipliers or its dual
    confirm: bool = False  # whether its step could fail although those of others succeed
    dual: int = 0  # a fingerprint of its dual's class and options
    kinds: dict[str, type[Violation]] = field(default_factory=dict)  # of its violations, by constraint
    movable: set[str] = field(default_factory=set)  # the constraints whose multipliers its dual holds
    rows: dict[str, int] = field(default_factory=dict)  # how many rows it has of large groups


@dataclass
class Header:
    """The header of a step, which is the same on all ranks. Lists are in the order of ranks."""

    refused: list[bool]
    changed: list[bool]
    confirm: list[bool]
    dual: list[int]
    present: dict[str, int]  # how many ranks have a violation of this constraint
    code: dict[str, int | None]  # the code of its kind; None if ranks have different kinds
    movable: dict[str, int]  # how many ranks can move it
    rows: dict[str, list[int]]  # of a large group, how many rows each rank has


def code_of(kind: type[Violation]) -> int:
    """A number for a kind of violation, of 20 bits, so that sums of squares over ranks are exact in a double."""
    return of_text(kind.label) % 2**20


def written(
    brought: Brought, names: Sequence[str], large: Sequence[str], rank: int, ranks: int
) -> list[float]:
    """The numbers of a header as one rank writes them."""
    own = (brought.refused, brought.changed, brought.confirm, brought.dual)
    numbers: list[float] = [0.0] * (len(own) * ranks)
    numbers[len(own) * rank : len(own) * (rank + 1)] = map(float, own)
    for name in names:
        code = code_of(brought.kinds[name]) if name in brought.kinds else 0
        numbers += (float(name in brought.kinds), float(code), float(code**2), float(name in brought.movable))
    for name in large:
        numbers += [float(brought.rows.get(name, 0) if each == rank else 0) for each in range(ranks)]
    return numbers


def read(numbers: Sequence[float], names: Sequence[str], large: Sequence[str], ranks: int) -> Header:
    """The header from the sum over ranks."""
    whole = iter([int(number) for number in numbers])
    refused, changed, confirm, dual = zip(*(_take(whole, 4) for _ in range(ranks)), strict=True)
    counts = {name: _take(whole, 4) for name in names}
    return Header(
        refused=[bool(each) for each in refused],
        changed=[bool(each) for each in changed],
        confirm=[bool(each) for each in confirm],
        dual=list(dual),
        present={name: present for name, (present, _, _, _) in counts.items()},
        # Codes are equal if and only if the mean of their squares is the square of their mean.
        code={
            name: total // present if present and present * squares == total**2 else None
            for name, (present, total, squares, _) in counts.items()
        },
        movable={name: movable for name, (_, _, _, movable) in counts.items()},
        rows={name: _take(whole, ranks) for name in large},
    )


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return [next(numbers) for _ in range(count)]
