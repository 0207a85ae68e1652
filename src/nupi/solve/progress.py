"""Show the progress of a long computation on stderr: a bar on a terminal, one line a minute in a log.

`reporter` is for functions that count themselves, such as `nupi.sweep`; `track` is for loops.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sized
from typing import TYPE_CHECKING, TextIO, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
Progress: TypeAlias = "Callable[[int, int], None] | bool | None"

PATIENCE = 1.0  # seconds before a bar is drawn
HEARTBEAT = 60.0  # seconds between lines if stderr is not a terminal
_WIDTH = 30
_ERASE = "\r\x1b[K"


def reporter(progress: Progress) -> Callable[[int, int], None]:
    """The function to call with (done, total): the user's own, one that draws a bar, or one that does nothing.

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
        return Bar("sweep")
    return lambda _done, _total: None


class Counter:
    """Counts the setting-steps done: those of finished chunks, and those of the running chunk.

    Args:
        report: called with (done, total).
        total: the number of all setting-steps.
        done: the number already done.
    """

    def __init__(self, report: Callable[[int, int], None], total: int, done: int) -> None:
        self._report, self._total = report, total
        self._done, self._running = done, 0
        if done:
            report(done, total)

    def tick(self, count: int) -> None:
        """Add `count` setting-steps of the running chunk."""
        self._running += count
        self._report(self._done + self._running, self._total)

    def finish(self, count: int) -> None:
        """Note that a chunk of `count` setting-steps is finished."""
        self._done += count
        self._running = 0
        self._report(self._done, self._total)


class Bar:
    """A bar that appears after a second and is redrawn at most ten times a second.

    Args:
        label: the name of the computation.
        stream: where to draw; stderr unless given.
        patience: seconds before it appears.
    """

    def __init__(
        self, label: str = "sweep", stream: TextIO | None = None, patience: float = PATIENCE
    ) -> None:
        self._label, self._patience = label, patience
        self._stream = sys.stderr if stream is None else stream
        self._started = time.monotonic()
        self._drawn: float | None = None

    def __call__(self, done: int, total: int) -> None:
        """Draw the bar; the last call ends the line."""
        last = done >= total
        if self._due(always=last):
            left = self._spent() * (total - done) / max(done, 1)
            filled = _WIDTH * done // max(total, 1)
            gauge = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * done // max(total, 1):3d}%"
            self._write(f"\r{self._label} {gauge} {left:5.0f} s left{chr(10) if last else ''}")

    def count(self, done: int, total: int | None) -> None:
        """Draw the bar, or only the count if the total is not known. Does not end the line."""
        if total and done < total:
            self(done, total)
        elif self._due(always=False):
            self._write(f"\r{self._label}: {done}{f' of {total}' if total else ''}")

    def erase(self) -> None:
        """Erase the bar, if it was drawn."""
        if self._drawn is not None:
            self._write(_ERASE)

    def _spent(self) -> float:
        return time.monotonic() - self._started

    def _due(self, *, always: bool) -> bool:
        now = time.monotonic()
        recent = self._drawn is not None and now - self._drawn < 0.1
        if now - self._started < self._patience or (recent and not always):
            return False
        self._drawn = now
        return True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def track(
    iterable: Iterable[T],
    label: str,
    total: int | None = None,
    *,
    stream: TextIO | None = None,
    terminal: bool | None = None,
    patience: float = PATIENCE,
    heartbeat: float = HEARTBEAT,
) -> Iterator[T]:
    """Iterate and show the progress: a bar after a second, or in a log one line a minute. May be nested.

    Args:
        iterable: what to iterate over.
        label: the name of the computation.
        total: the number of items, if the iterable has no length.
        stream: where to write; stderr unless given.
        terminal: whether the stream is a terminal; by default it is asked.
        patience: seconds before a bar is drawn.
        heartbeat: seconds between two lines of a log.
    """
    stream = sys.stderr if stream is None else stream
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if stream.isatty() if terminal is None else terminal:
        yield from _with_bar(iterable, Bar(label, stream, patience), total, patience)
        return
    told = time.monotonic()
    for done, item in enumerate(iterable, start=1):
        yield item
        if time.monotonic() - told > heartbeat:
            told = time.monotonic()
            stream.write(f"{label}: {done} of {total or 'unknown'}\n")
            stream.flush()


def _with_bar(iterable: Iterable[T], bar: Bar, total: int | None, patience: float) -> Iterator[T]:
    """Iterate and draw the bar. A timer draws it the first time, because the first item may be the long one."""
    lock = threading.Lock()
    done, over = 0, False

    def draw() -> None:
        with lock:
            if not over:
                bar.count(done, total)

    timer = threading.Timer(patience, draw)
    timer.daemon = True
    timer.start()
    try:
        for item in iterable:
            yield item
            done += 1
            draw()
    finally:
        timer.cancel()
        with lock:
            over = True
            bar.erase()
