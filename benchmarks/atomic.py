"""The cost of the copies by which `ascend` can undo a step: the training step of `step.py` with and without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.step import with_nupi
from benchmarks.timing import Row, at_most, best_times, listed
from nupi.ascent import step as ascent
from nupi.ascent.repeat import Repeat

if TYPE_CHECKING:
    from collections.abc import Callable


class Nothing:
    """Copies nothing, so it cannot undo anything."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take the arguments of `Snapshot`."""


def without_copies() -> Callable[[], None]:
    """The same step, with a snapshot that copies nothing, and one number where a repeated step copies its state."""
    plain, names = with_nupi(), vars(ascent)
    whole, prepare = names["Snapshot"], Repeat._prepare_undoing
    one_number = [torch.zeros(1)], [torch.zeros(1)]

    def step() -> None:
        names["Snapshot"] = Nothing
        Repeat._prepare_undoing = lambda *_: one_number  # type: ignore[method-assign]
        try:
            plain()
        finally:
            names["Snapshot"], Repeat._prepare_undoing = whole, prepare  # type: ignore[method-assign]

    return step


def run() -> list[Row]:
    """The share of the time of a step with 70 constraints that copies take."""
    torch.set_num_threads(1)
    times = best_times({"atomic": with_nupi(), "no copies": without_copies()}, rounds=300, calls=6)
    return [at_most("atomic / no copies", times["atomic"] / times["no copies"], 1.05, listed(times))]
