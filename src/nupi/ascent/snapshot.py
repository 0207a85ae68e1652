"""Copy what a step of a dual optimizer may change, so that the step can be undone.

If a step raises, the host undoes it. If the host must not read values (an accelerator, a compiled graph), a step with
numbers that are not finite is undone on the device.
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
    """Copies of the multipliers that are about to move, and of the dual optimizer's state for them.

    Only the groups that move are copied. If only some rows of a group move, only those rows are copied, unless the
    optimizer is another library's: its momentum may move other rows too.
    """

    def __init__(self, dual: torch.optim.Optimizer, moves: Sequence[Move], *, alone: bool = False) -> None:
        """Copy what may change. `alone`: no other step can begin before this one has ended."""
        self._dual, self._moves = dual, moves
        ours = dual if isinstance(dual, DualOptimizer) else None
        writes = ours is None or ours.writes_groups
        # Of tensors that are copied in part: the tensor, some rows of it, and their copies.
        self._some: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        # Tensors that are copied whole, and for each a mask of the rows that may move (None: all).
        self._whole: list[torch.Tensor] = []
        self._masks: list[torch.Tensor | None] = []
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
        # Optimizers of other libraries may count steps, or keep averages, in their param groups.
        self._groups = [dict(group) for group in dual.param_groups] if writes else None

    def _keep(self, tensor: torch.Tensor, move: Move, ours: DualOptimizer | None) -> None:
        if ours is None or move.rows is None or not tensor.dim():
            self._whole.append(tensor)
            self._masks.append(move.mask)
        else:
            self._some.append((tensor, move.rows, tensor.index_select(0, move.rows)))

    def undo(self) -> None:
        """Restore everything; state that the step has created is removed."""
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
        """Restore the rows that a mask excludes, after a step that moved all rows."""
        for tensor, old, mask in zip(self._whole, self._copies, self._masks, strict=True):
            if mask is not None and tensor.shape[: mask.dim()] == mask.shape:
                tensor.copy_(torch.where(rows_like(mask, tensor), tensor, old))

    def undo_unless(self, good: torch.Tensor) -> None:
        """Restore everything on the device unless `good` is true there; always restore what a mask excludes."""
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
        """Mark the rows of new state as not started: a device cannot remove state that a refused step has created."""
        state = self._dual.state.get(move.multiplier) or {}
        made = [slot for slot in state if slot not in before and slot != "beyond"]
        if move.rows is not None:
            if "started" in made:  # earlier state has already been restored row by row
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
    """Copies of tensors, in memory that `dual` keeps from step to step, or in new memory if `dual` is None."""
    if dual is None or not tensors:
        return [tensor.clone() for tensor in tensors]
    spare = spare_for(dual, tensors)
    torch._foreach_copy_(spare, tensors)
    return spare


def spare_for(dual: DualOptimizer, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Memory for copies of these tensors, which `dual` keeps from step to step."""
    # Pointer, shape and dtype: if a tensor's data is replaced, one of the three changes.
    places = [(tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors]
    spare: list[torch.Tensor]
    known, spare = dual.__dict__.get("_spare", (None, []))  # neither saved nor copied with the optimizer
    if places != known:
        with torch.inference_mode(False):
            spare = [torch.empty_like(tensor) for tensor in tensors]
        dual.__dict__["_spare"] = places, spare
    return spare


def can_undo_on_device(dual: torch.optim.Optimizer, move: Move) -> bool:
    """Whether copies of tensors restore all that a step changes.

    They cannot restore state that does not exist yet, numbers that are on the host, or a mask that the step removes.
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
