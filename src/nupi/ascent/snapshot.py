"""What a step of a dual optimizer may change, kept so that it can be put back.

A step that raises, wherever, is undone by the host. Where the host may not look at values (an accelerator, a compiled
graph), a step with numbers that are not finite is undone on the device.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi.optim.base import DualOptimizer
from nupi.rule import rows_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.violations import Move


_Kept: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]"
"""A tensor, what it was, the rows of it that were kept (None: all), and a mask of rows that may move (None: all)."""


class Snapshot:
    """The multipliers that are about to move, and all that a dual optimizer keeps for them.

    Its cost is that of copying the groups that move. Of a group of which some rows move, only those rows are copied,
    unless the optimizer is another library's: its momentum may move other rows too.
    """

    def __init__(self, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
        self._dual, self._moves = dual, moves
        ours = isinstance(dual, DualOptimizer)
        self._kept: list[_Kept] = []
        self._states: list[dict[str, Any] | None] = []
        whole: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        untouched: frozenset[str] = frozenset()
        if isinstance(dual, DualOptimizer) and dual.writes_groups:
            untouched = dual.untouched(some_rows=any(move.rows is not None for move in moves))
        for move in moves:
            rows, mask, theta = move.rows if ours else None, move.mask, move.multiplier
            if rows is None:
                whole.append((theta, mask))
            else:
                self._kept.append((theta, theta.index_select(0, rows), rows, mask))
            state = dual.state.get(theta)
            if state is None:
                self._states.append(None)
                continue
            before = dict(state)
            self._states.append(before)
            for slot, value in state.items():
                if slot in untouched:
                    continue
                if not isinstance(value, torch.Tensor):
                    before[slot] = deepcopy(value)
                elif value.layout != torch.strided:  # a sparse momentum is replaced, not written to
                    before[slot] = value.clone()
                elif rows is None or not value.dim():
                    whole.append((value, mask))
                else:
                    self._kept.append((value, value.index_select(0, rows), rows, mask))
        copies = _copies(dual, [tensor for tensor, _ in whole])
        self._kept += [(tensor, old, None, mask) for (tensor, mask), old in zip(whole, copies, strict=True)]
        # Other libraries count steps, or keep averages, in their param groups.
        writes = not isinstance(dual, DualOptimizer) or dual.writes_groups
        self._groups = [dict(group) for group in dual.param_groups] if writes else None

    def undo(self) -> None:
        """Put everything back as it was, state that was not there before included."""
        for tensor, old, rows, _ in self._kept:
            if rows is None:
                tensor.copy_(old)
            else:
                tensor.index_copy_(0, rows, old)
        for move, state in zip(self._moves, self._states, strict=True):
            if state is None:
                self._dual.state.pop(move.multiplier, None)
            else:
                now = self._dual.state[move.multiplier]
                now.clear()
                now.update(state)
        for group, before in zip(self._dual.param_groups, self._groups or (), strict=False):
            group.clear()
            group.update(before)

    def undo_masked(self) -> None:
        """Put back the rows that a mask says must not move, after a step that moved them all."""
        for tensor, old, rows, mask in self._kept:
            if mask is not None and rows is None and tensor.shape[: mask.dim()] == mask.shape:
                tensor.copy_(torch.where(rows_like(mask, tensor), tensor, old))

    def undo_unless(self, good: torch.Tensor) -> None:
        """Put everything back on the device unless `good` holds there, and in any case what a mask excludes."""
        for tensor, old, rows, mask in self._kept:
            if rows is not None:
                tensor.index_copy_(0, rows, torch.where(good, tensor.index_select(0, rows), old))
                continue
            moved = good
            if mask is not None and tensor.shape[: mask.dim()] == mask.shape:
                moved = rows_like(good & mask, tensor)
            tensor.copy_(torch.where(moved, tensor, old))
        if isinstance(self._dual, DualOptimizer):
            for move, before in zip(self._moves, self._states, strict=True):
                self._mark_started(move, before or {}, good)

    def _mark_started(self, move: Move, before: dict[str, torch.Tensor], good: torch.Tensor) -> None:
        """State that a refused step has made cannot be taken away on a device: mark its rows as not started."""
        state = self._dual.state.get(move.multiplier) or {}
        made = [slot for slot in state if slot not in before and slot != "beyond"]
        if move.rows is not None:
            if "started" in made:  # what was there before has been brought back row by row
                state["started"] &= good
            return
        moved = good if move.mask is None else good & move.mask
        if "started" in before:
            state["started"] = before["started"] | rows_like(moved, before["started"])
        elif made:
            state["started"] = moved.expand(move.multiplier.shape[:1]).clone()


def _copies(dual: torch.optim.Optimizer, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors. An optimizer of ours keeps the memory of the last step's for those of the next.

    A hook may take a step within a step, whose copies must not overwrite those of the outer one.
    """
    if not tensors or not isinstance(dual, DualOptimizer) or torch.compiler.is_compiling() or dual.watched:
        return [tensor.clone() for tensor in tensors]
    spare: list[torch.Tensor] = dual.__dict__.setdefault("_spare", [])  # neither saved nor copied with it
    fits = len(spare) == len(tensors) and all(
        old.shape == new.shape and old.dtype == new.dtype and old.device == new.device
        for old, new in zip(spare, tensors, strict=True)
    )
    if not fits:
        with torch.inference_mode(False):
            spare[:] = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(spare, tensors)
    return list(spare)


def can_undo_on_device(dual: torch.optim.Optimizer, move: Move) -> bool:
    """Whether copies of tensors bring back all that a step changes.

    They do not bring back state that is not there yet, numbers that are kept on the host, or the end of a mask.
    """
    state = dual.state.get(move.multiplier)
    if not state:
        if isinstance(dual, DualOptimizer):
            return not dual.keeps_state(move.multiplier)
        plain = all(not group.get("momentum") for group in dual.param_groups)
        return isinstance(dual, torch.optim.SGD) and plain
    on_device = all(
        isinstance(value, torch.Tensor) and value.device == move.multiplier.device
        for value in state.values()
        if value is not None
    )
    return on_device and not ("started" in state and move.rows is None)
