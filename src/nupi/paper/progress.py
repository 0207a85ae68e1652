"""Progress bars that appear only when there is something to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sized
from typing import TYPE_CHECKING, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

T = TypeVar("T")

PATIENCE = 1.0  # seconds before a bar is drawn
HEARTBEAT = 60.0  # seconds between lines where there is no terminal to draw on


class Bars:
    """One live display for any number of bars, nested or not; one that ends within a second is not drawn.

    Where the output is a file, a line a minute takes the place of the bars.
    """

    def __init__(self, console: Console, patience: float = PATIENCE, heartbeat: float = HEARTBEAT) -> None:
        self._display = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._console = console
        self._patience = patience
        self._heartbeat = heartbeat
        self._lock = threading.RLock()
        self._open = 0
        self._drawn = False

    def track(self, iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Iterate, and draw a bar if it takes longer than a second.

        Args:
            iterable: what to iterate over.
            description: what the reader is waiting for.
            total: how many items there are, if the iterable does not know.
        """
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        bar = self._display.add_task(description, total=total, visible=False)
        # A timer and not a check after each item: the first item may be the long one.
        timer = threading.Timer(self._patience, self._draw, [bar])
        timer.daemon = True
        timer.start()
        self._open += 1
        try:
            told = time.monotonic()
            for done, item in enumerate(iterable, start=1):
                yield item
                self._display.advance(bar)
                if not self._console.is_terminal and time.monotonic() - told > self._heartbeat:
                    told = time.monotonic()
                    self._console.print(f"{description}: {done} of {total or 'unknown'}", markup=False)
        finally:
            timer.cancel()
            self._remove(bar)

    def _draw(self, bar: TaskID) -> None:
        with self._lock:
            if bar not in self._display.task_ids or not self._console.is_terminal:
                return
            self._display.update(bar, visible=True)
            if not self._drawn:
                self._drawn = True
                self._display.start()

    def _remove(self, bar: TaskID) -> None:
        with self._lock:
            self._display.remove_task(bar)
            self._open -= 1
            if self._drawn and self._open == 0:
                self._drawn = False
                self._display.stop()
