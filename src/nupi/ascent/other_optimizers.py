"""Give the optimizers of torch and of other libraries errors in a layout that they take.

nupi's optimizers take errors of some rows of a group. With torch's own it depends on the optimizer:

| optimizer                      | `Indexed`                          | `Averaged`, rows without a count |
| ------------------------------ | ---------------------------------- | -------------------------------- |
| SGD, Adagrad                   | a sparse gradient                  | put back after a dense step      |
| … with momentum, weight decay  | dense: other rows may move as well | put back after a dense step      |
| SparseAdam                     | a sparse gradient                  | a sparse gradient                |
| all others                     | refused                            | put back after a dense step      |

SGD with momentum could take sparse gradients, but then its momentum would be sparse, and could never take a dense one.
With weight decay it raises in the middle of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.violations import Move


def in_their_layout(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> list[Move]:
    """The same moves in the layout that this optimizer takes."""
    return [_in_layout(dual, move) for move in moves]


def as_gradient(move: Move) -> torch.Tensor:
    """A copy of the error as a gradient, sparse if only some rows have one. Optimizers may write to gradients."""
    if move.rows is None:
        return move.error.clone()
    return torch.sparse_coo_tensor(
        move.rows.unsqueeze(0),
        move.error.clone(),
        move.multiplier.shape,
        check_invariants=False,
        is_coalesced=True,
    )


def explained(dual: torch.optim.Optimizer, moves: Sequence[Move], error: RuntimeError) -> RuntimeError:
    """An error that names the optimizer that takes no sparse gradients, and those that do."""
    names = [move.name for move in moves if move.rows is not None]
    if not names or "sparse" not in str(error):
        return error
    return RuntimeError(
        f"{type(dual).__name__} takes no Indexed violations, but {', '.join(map(repr, names))} came as such; "
        "use an optimizer of nupi, or torch's SGD, Adagrad or SparseAdam"
    )


def make_state_dense(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """Make sparse state dense, such as that of an older checkpoint, so that it takes gradients of any layout."""
    if not _has_memory(dual):
        return
    for move in moves:
        state = dual.state.get(move.multiplier, {})
        for slot, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_sparse:
                state[slot] = value.to_dense()


def _in_layout(dual: torch.optim.Optimizer, move: Move) -> Move:
    if isinstance(dual, torch.optim.SparseAdam):
        if move.rows is not None or not move.error.dim():
            return move
        return move._replace(rows=torch.arange(len(move.error), device=move.error.device))
    if move.rows is None or not (move.partial or _has_memory(dual)):
        return move
    mask = torch.zeros(len(move.multiplier), dtype=torch.bool, device=move.error.device)
    mask[move.rows] = True
    error = torch.zeros_like(move.multiplier).index_copy_(0, move.rows, move.error)
    return move._replace(error=error, rows=None, mask=mask if move.partial else None)


def _has_memory(dual: torch.optim.Optimizer) -> bool:
    return isinstance(dual, (torch.optim.SGD, torch.optim.Adagrad)) and any(
        group.get("momentum") or group["weight_decay"] for group in dual.param_groups
    )
