"""Keep a non-finite violation from ever reaching a multiplier.

Where the host can look for free (the CPU), a bad violation is refused before anything moves. On an
accelerator a look would stall the stream, so the step is taken, and undone *on the device* where a violation
was not finite; which constraint it was is reported as soon as the host can know without waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch

from nupi.optim.base import DualOptimizer
from nupi.optim.tensors import rows_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.violations.base import Move

_FEW = 10_000  # errors of several groups; so many are joined faster than they are summed one by one

# A tensor, the rows of it that a step can change (None means all of it), and a mask of those that it may (None: all).
Touched: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]"


class NonFiniteViolationError(ValueError):
    """A violation was nan or infinite; no multiplier and no controller state was changed by it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        which = ", ".join(repr(name) for name in names)
        super().__init__(
            f"violations of {which} are not finite (nan or inf); every multiplier and all controller state "
            "stay as they were. Look at how the violation is computed: a mean over an empty group, a "
            "division by zero, a model that diverged (on an accelerator also: an index out of range)"
        )


def free_to_look(tensor: torch.Tensor) -> bool:
    """Whether the host can read this tensor's values without stalling a stream or breaking a graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def refuse_non_finite(moves: Sequence[Move]) -> None:
    """Raise now, naming the constraints, if any error is not finite. Costs one host synchronisation."""
    # A finite sum clears all errors at once; only an overflow or a real offender asks for the exact look.
    if len(moves) == 1:
        total = moves[0].error.sum().item()
    elif sum(move.error.numel() for move in moves) > _FEW:
        total = sum(move.error.sum().item() for move in moves)
    else:
        total = torch.cat([move.error.reshape(-1) for move in moves]).sum().item()
    if math.isfinite(total):
        return
    bad = [move.name for move in moves if not bool(torch.isfinite(move.error).all())]
    if bad:
        raise NonFiniteViolationError(bad)


def irrevocable(dual: torch.optim.Optimizer, move: Move) -> bool:
    """Whether a step changes what copies of tensors cannot bring back.

    That is: state that is not there yet, numbers that are kept on the host, the end of a mask of rows.
    """
    state = dual.state.get(move.multiplier)
    if not state:
        return not _stateless(dual, move.multiplier)
    on_host = any(
        not isinstance(value, torch.Tensor) or value.device != move.multiplier.device
        for value in state.values()
        if value is not None
    )
    return on_host or ("seen" in state and move.rows is None)


def _stateless(dual: torch.optim.Optimizer, param: torch.Tensor) -> bool:
    """Whether this optimizer keeps nothing for a parameter, however often it steps."""
    if isinstance(dual, DualOptimizer):
        return not dual.keeps_state(param)
    return isinstance(dual, torch.optim.SGD) and all(not group["momentum"] for group in dual.param_groups)


def touched_by(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> list[Touched]:
    """Every tensor that a step of `dual` over these moves can change."""
    touched: list[Touched] = []
    for move in moves:
        # Another library's optimizer may move rows that its momentum remembers.
        rows = move.rows if isinstance(dual, DualOptimizer) else None
        state = dual.state.get(move.multiplier, {})
        tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
        touched += [
            (tensor, rows if tensor.dim() else None, _over(move.seen, tensor))
            for tensor in (move.multiplier, *tensors)
        ]
    return touched


def _over(seen: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    """A mask of rows, for a tensor that has these rows."""
    return seen if seen is not None and tensor.shape[: seen.dim()] == seen.shape else None


def keep(touched: Sequence[Touched]) -> list[torch.Tensor]:
    """Copies of everything a step can change."""
    return [tensor.clone() if rows is None else tensor.index_select(0, rows) for tensor, rows, _ in touched]


def undo(touched: Sequence[Touched], kept: Sequence[torch.Tensor], good: torch.Tensor) -> None:
    """Put the copies back, on the device, unless the step was `good`; and what was not to be moved in any case."""
    for (tensor, rows, seen), old in zip(touched, kept, strict=True):
        if rows is None:
            moved = good if seen is None else rows_like(good & seen, tensor)
            tensor.copy_(torch.where(moved, tensor, old))
        else:
            tensor.index_copy_(0, rows, torch.where(good, tensor.index_select(0, rows), old))


def remember(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> list[dict[str, torch.Tensor]]:
    """The state of each multiplier as it is named now, for `disown` to tell what a step has added."""
    return [dict(dual.state.get(move.multiplier, {})) for move in moves]


def disown(
    dual: torch.optim.Optimizer,
    moves: Sequence[Move],
    remembered: Sequence[dict[str, torch.Tensor]],
    good: torch.Tensor,
) -> None:
    """Have state that a step made, and should not have made, count for nothing on the next.

    An optimizer of ours is told whether its rows have been seen. Another library's has its first step looked at by the
    host wherever it is (see `irrevocable`), and makes no state later.
    """
    if not isinstance(dual, DualOptimizer):
        return
    for move, before in zip(moves, remembered, strict=True):
        state = dual.state.get(move.multiplier, {})
        new = [slot for slot in state if slot not in before]
        if move.rows is not None:
            if "seen" in new:  # what was there before has been brought back row by row
                state["seen"] &= good
        else:
            moved = good if move.seen is None else good & move.seen
            if "seen" in before:
                state["seen"] = before["seen"] | rows_like(moved, before["seen"])
            elif new:
                state["seen"] = moved.expand(move.multiplier.shape[:1]).clone()


class Look:
    """A look at flags that live on a device: begun without waiting, finished when they have arrived."""

    def __init__(self, flags: torch.Tensor) -> None:
        self._flags = flags.to("cpu", non_blocking=True, copy=True)
        self._arrival: torch.Event | None = None
        if flags.device.type != "cpu":
            self._arrival = torch.Event(flags.device)
            self._arrival.record()

    def result(self, *, wait: bool) -> list[bool] | None:
        """The flags, or None while they are on their way and the caller will not `wait`."""
        if self._arrival is not None:
            if wait:
                self._arrival.synchronize()
            elif not self._arrival.query():
                return None
        return [bool(flag) for flag in self._flags.tolist()]

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """A copied problem looks for itself: an event of a stream cannot be copied."""
        return

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()
