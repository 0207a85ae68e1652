"""Optimizers of other libraries: errors in a layout that they take, and rows that a step of theirs leaves alone.

An optimizer of nupi takes some rows of a group as they come. Of torch's own each has its own idea of them:

| optimizer                      | `Indexed`                          | `Averaged`, rows without a count |
| ------------------------------ | ---------------------------------- | -------------------------------- |
| SGD, Adagrad                   | a sparse gradient                  | put back after a dense step      |
| … with momentum, weight decay  | dense: other rows may move as well | put back after a dense step      |
| SparseAdam                     | a sparse gradient                  | a sparse gradient                |
| all others                     | refused                            | put back after a dense step      |

SGD with momentum could take sparse gradients, but its momentum would be sparse then, and would take no dense one again;
weight decay refuses them in the middle of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.ascent import finite as guard
from nupi.optim.base import DualOptimizer
from nupi.optim.tensors import rows_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.violations.base import Move


def as_taken(dual: torch.optim.Optimizer, moves: list[Move]) -> list[Move]:
    """The same moves in the layout that this optimizer takes."""
    if isinstance(dual, DualOptimizer):
        return moves
    return [_as_taken(dual, move) for move in moves]


def _as_taken(dual: torch.optim.Optimizer, move: Move) -> Move:
    if isinstance(dual, torch.optim.SparseAdam):
        if move.rows is not None or not move.error.dim():
            return move
        return move._replace(rows=torch.arange(len(move.error), device=move.error.device))
    remembers = isinstance(dual, (torch.optim.SGD, torch.optim.Adagrad)) and any(
        group.get("momentum") or group["weight_decay"] for group in dual.param_groups
    )
    if remembers:
        _densify(dual, move.multiplier)
    if move.rows is None or not (move.averaged or remembers):
        return move
    seen = torch.zeros(len(move.multiplier), dtype=torch.bool, device=move.error.device)
    seen[move.rows] = True
    error = torch.zeros_like(move.multiplier).index_copy_(0, move.rows, move.error)
    return move._replace(error=error, rows=None, seen=seen if move.averaged else None)


def _densify(dual: torch.optim.Optimizer, multiplier: torch.Tensor) -> None:
    """Turn state that came sparse, as from an older checkpoint, into what takes gradients of any layout."""
    state = dual.state.get(multiplier, {})
    for slot, value in state.items():
        if isinstance(value, torch.Tensor) and value.is_sparse:
            state[slot] = value.to_dense()


class Unseen:
    """The rows that a step must leave alone, in the multipliers and in what the optimizer keeps for them."""

    def __init__(self, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
        self._touched = guard.touched_by(dual, [move for move in moves if move.seen is not None])
        self._kept = guard.keep(self._touched)

    def put_back(self) -> None:
        """Undo the step in those rows. State that the step has made is what it would be made as: their error was 0."""
        for (tensor, _, seen), old in zip(self._touched, self._kept, strict=True):
            if seen is not None:
                tensor.copy_(torch.where(rows_like(seen, tensor), tensor, old))
