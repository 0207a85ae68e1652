"""Checks that `minimize` and `sweep` share."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from nupi.solve.chunk import RECORDABLE

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_run(steps: int, tol: float | None, history: Sequence[str], every: int) -> None:
    """Refuse invalid `steps`, `tol`, `history` or `every`, before any step."""
    for name, number in (("steps", steps), ("every", every)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, but {number!r} came")
    if tol is not None and not (isinstance(tol, (int, float)) and math.isfinite(tol) and tol > 0):
        raise ValueError(f"tol must be a positive number, or None to spend all steps, but {tol!r} came")
    if isinstance(history, str):
        raise TypeError(f"history must be a list of names, but {history!r} came; use [{history!r}]")
    if not isinstance(history, Collection):
        raise TypeError(f"history must be a list of names, but {history!r} came; use [] to record nothing")
    unknown = [name for name in history if name not in RECORDABLE]
    if unknown:
        raise ValueError(
            f"history cannot record {', '.join(map(repr, unknown))}; choose from {', '.join(RECORDABLE)}"
        )


def check_switch(name: str, value: object) -> None:
    """Refuse any value but True and False, such as the string "no", which counts as true in Python."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but {value!r} came")
