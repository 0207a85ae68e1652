"""What is told of a step: listeners, which are called after it, and what they add to an error."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from nupi.ascent.finite import NonFiniteViolationError
    from nupi.lagrangian import Lagrangian
    from nupi.violations import Move


class Ascent(NamedTuple):
    """What a listener gets after a step."""

    dual: torch.optim.Optimizer
    moves: Sequence[Move]  # the multipliers after the step, and the errors that moved them


class Listener:
    """A handle on a callback of `Lagrangian.listen`; `remove` stops the calls."""

    def __init__(self, lagrangian: Lagrangian, callback: Callable[[Ascent], object]) -> None:
        self._lagrangian, self.callback = lagrangian, callback

    def remove(self) -> None:
        """Stop calling this listener."""
        if self in self._lagrangian._listeners:
            self._lagrangian._listeners.remove(self)


def explain(error: NonFiniteViolationError, listeners: Iterable[Listener]) -> NonFiniteViolationError:
    """The error with what the listeners say about the constraints that it names."""
    shown = []
    for listener in listeners:
        says = getattr(listener.callback, "explain", None)
        if says is not None:
            with suppress(Exception):  # if a listener fails, still report this error
                shown.append(says(error.names))
    text = " ".join(filter(None, shown))
    if text:
        error.add_record(text)
    return error
