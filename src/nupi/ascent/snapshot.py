"""What a step of a dual optimizer may change, kept so that it can be put back.

A step that raises, wherever, is undone by the host. Where the host may not look at values (an accelerator, a compiled
graph), a step with numbers that are not finite is undone on the device.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from nupi.optim.base import DualOptimizer
from nupi.rule import rows_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.violations import Move


class Snapshot:
    """The multipliers that are about to move, and all that a dual optimizer keeps for them.

    Its cost is that of copying the groups that move. Of a group of which some rows move, only those rows are copied,
    unless the optimizer is another library's: its momentum may move other rows too.
    """

    def __init__(self, dual: torch.optim.Optimizer, moves: Sequence[Move], *, alone: bool = False) -> None:
        """Copy what may change. `alone` says that no other step can begin before this one has ended."""
        self._dual, self._moves = dual, moves
        ours = dual if isinstance(dual, DualOptimizer) else None
        writes = ours is None or ours.writes_groups
        self._some: list[
            tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        ] = []  # a tensor, rows of it, what they were
        self._whole: list[torch.Tensor] = []  # tensors that are kept whole
        self._masks: list[torch.Tensor | None] = []  # and, of each, a mask of rows that may move (None: all)
        self._states: list[dict[str, Any] | None] = []
        untouched: frozenset[str] = frozenset()
        if ours is not None and writes:
            untouched = ours.untouched(some_rows=any(move.rows is not None for move in moves))
        for move in moves:
            state = dual.state.get(move.multiplier)
            self._keep(move.multiplier, move, ours)
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
                else:
                    self._keep(value, move, ours)
        self._copies = _copies(ours if alone else None, self._whole)
        # Other libraries count steps, or keep averages, in their param groups.
        self._groups = [dict(group) for group in dual.param_groups] if writes else None

    def _keep(self, tensor: torch.Tensor, move: Move, ours: DualOptimizer | None) -> None:
        if ours is None or move.rows is None or not tensor.dim():
            self._whole.append(tensor)
            self._masks.append(move.mask)
        else:
            self._some.append((tensor, move.rows, tensor.index_select(0, move.rows)))

    def undo(self) -> None:
        """Put everything back as it was, state that was not there before included."""
        for tensor, old in zip(self._whole, self._copies, strict=True):
            tensor.copy_(old)
        for tensor, rows, old in self._some:
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
        for tensor, old, mask in zip(self._whole, self._copies, self._masks, strict=True):
            if mask is not None and tensor.shape[: mask.dim()] == mask.shape:
                tensor.copy_(torch.where(rows_like(mask, tensor), tensor, old))

    def undo_unless(self, good: torch.Tensor) -> None:
        """Put everything back on the device unless `good` holds there, and in any case what a mask excludes."""
        for tensor, rows, old in self._some:
            tensor.index_copy_(0, rows, torch.where(good, tensor.index_select(0, rows), old))
        for tensor, old, mask in zip(self._whole, self._copies, self._masks, strict=True):
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
            # Contiguous, or else the next step makes it so, and a compiled step is compiled once more.
            each = moved.expand(move.multiplier.shape[:1])
            state["started"] = each.clone(memory_format=torch.contiguous_format)


def _copies(dual: DualOptimizer | None, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors, in memory that is kept on `dual` from step to step; or in new memory if that is None."""
    if dual is None or not tensors:
        return [tensor.clone() for tensor in tensors]
    spare = spare_for(dual, tensors)
    torch._foreach_copy_(spare, tensors)
    return spare


def spare_for(dual: DualOptimizer, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for copies of these tensors, which is kept on `dual` from step to step."""
    # Where the numbers lie, and what they are: whoever replaces a tensor's data changes one of the three.
    places = [(tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors]
    spare: list[torch.Tensor]
    known, spare = dual.__dict__.get("_spare", (None, []))  # neither saved nor copied with it
    if places != known:
        with torch.inference_mode(False):
            spare = [torch.empty_like(tensor) for tensor in tensors]
        dual.__dict__["_spare"] = places, spare
    return spare


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
