"""What one rank has seen in a step, in a form that adds up over ranks (see `nupi.distributed.together`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nupi.constraints import Averaged, Indexed
from nupi.violations.base import Violation, checked, checked_average, checked_rows

if TYPE_CHECKING:
    import torch

    from nupi.distributed.drift import Vow

KINDS = ("a tensor", "Indexed", "Averaged")


class Seen(NamedTuple):
    """What this rank has of one constraint: which of `KINDS`, and the values and weights that add up."""

    kind: int
    values: torch.Tensor  # like the group; of an Indexed one, the rows as they came
    weights: torch.Tensor | None  # a count a row; of an Indexed one, the rows' numbers


class Here(NamedTuple):
    """What this rank brings to a step."""

    seen: dict[str, Seen]  # by constraint name
    movable: set[str]  # the constraints whose multipliers its dual holds
    vow: Vow


def seen_here(name: str, multiplier: torch.Tensor, violation: Violation) -> Seen:
    """A violation, checked as ever, in the form that adds up over ranks."""
    if isinstance(violation, Indexed):
        values, rows = checked_rows(name, multiplier, violation)
        return Seen(1, values.detach().double(), rows)
    if isinstance(violation, Averaged):
        sums, counts = checked_average(name, multiplier, violation)
        return Seen(2, sums.detach().double(), counts.double())
    return Seen(0, checked(name, multiplier, violation).detach().double(), None)
