"""What it costs that `ascend` can undo a step: the training step of `step.py` with and without its copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.step import with_nupi
from benchmarks.timing import Row, at_most, best_times, listed
from nupi.ascent import step as ascent

if TYPE_CHECKING:
    from collections.abc import Callable


class Nothing:
    """Keeps nothing, and could undo nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what `Snapshot` takes."""


def without_copies() -> Callable[[], None]:
    """The same step, with a snapshot that copies nothing."""
    plain, names = with_nupi(), vars(ascent)
    whole = names["Snapshot"]

    def step() -> None:
        names["Snapshot"] = Nothing
        try:
            plain()
        finally:
            names["Snapshot"] = whole

    return step


def run() -> list[Row]:
    """The share of a step with 70 constraints that goes into copies."""
    torch.set_num_threads(1)
    times = best_times({"atomic": with_nupi(), "no copies": without_copies()}, rounds=300, calls=6)
    return [at_most("atomic / no copies", times["atomic"] / times["no copies"], 1.05, listed(times))]
