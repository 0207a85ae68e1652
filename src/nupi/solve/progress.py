"""A progress bar of a few lines, for terminals: the core depends on torch alone."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Progress: TypeAlias = "Callable[[int, int], None] | bool | None"

PATIENCE = 1.0  # seconds before a bar is drawn
_WIDTH = 30


def reporter(progress: Progress) -> Callable[[int, int], None]:
    """What to call with (done, total): the user's own function, a bar on a terminal, or nothing.

    Args:
        progress: a function; True for a bar; False for none; None for a bar if stderr is a terminal.
    """
    if callable(progress):
        return progress
    if progress is not None and not isinstance(progress, bool):
        raise TypeError(
            f"progress must be a function of (done, total), True, False or None, but {progress!r} came"
        )
    if progress is True or (progress is None and sys.stderr.isatty()):
        return Bar()
    return lambda _done, _total: None


class Bar:
    """A bar on stderr that appears after a second and redraws itself ten times a second at most."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Draw the bar; the last call ends the line."""
        now = time.monotonic()
        spent, last = now - self._started, done >= total
        if spent < PATIENCE or (now - self._drawn < 0.1 and not last):
            return
        self._drawn = now
        filled = _WIDTH * done // max(total, 1)
        left = spent * (total - done) / max(done, 1)
        sys.stderr.write(
            f"\rsweep [{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * done // max(total, 1):3d}% "
            f"{left:5.0f} s left{chr(10) if last else ''}"
        )
        sys.stderr.flush()
