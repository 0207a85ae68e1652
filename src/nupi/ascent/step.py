"""One step of a dual optimizer over the multipliers of some constraints: checked, taken, projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from nupi.ascent import finite as guard
from nupi.ascent.other_optimizers import Unseen
from nupi.constraints import Constraint, Inequality
from nupi.optim.base import DualOptimizer
from nupi.violations.base import Move, as_sparse_gradient

if TYPE_CHECKING:
    from nupi.violations.base import Violation

Constraints: TypeAlias = Mapping[str, Constraint]


def check_dual(
    dual: torch.optim.Optimizer,
    moves: Sequence[Move] | Sequence[tuple[str, torch.Tensor, Violation]],
) -> None:
    """Refuse an optimizer that would not move these multipliers, or would move them down."""
    if not isinstance(dual, torch.optim.Optimizer):
        raise TypeError(f"dual must be a torch optimizer over the multipliers, but {dual!r} came")
    held = {id(param): group for group in dual.param_groups for param in group["params"]}
    for name, multiplier, *_ in moves:
        group = held.get(id(multiplier))
        if group is None:
            raise ValueError(
                f"dual does not hold the multiplier of {name!r}, so it cannot move it; "
                "build it from lagrangian.parameters()"
            )
        if not group.get("maximize", False):
            kind = type(dual).__name__
            fix = f"build {kind} with maximize=True" if "maximize" in group else f"{kind} cannot maximize"
            raise ValueError(
                f"dual would minimize over the multiplier of {name!r}, but multipliers ascend; {fix}"
            )


def breaks_graph(dual: torch.optim.Optimizer) -> bool:
    """Whether a compiler must leave the step to eager code.

    The optimizers of other libraries break a graph of their own accord, take sparse gradients that it does not know,
    and begin with state that need not be 0, so that a first step which is refused could not be undone.
    """
    return isinstance(dual, torch.optim.Optimizer) and not isinstance(dual, DualOptimizer)


def host_may_look(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> bool:
    """Whether a look at the errors' values is free, or cannot be done without."""
    for move in moves:
        if not guard.free_to_look(move.error):
            break
    else:
        return True
    if torch.compiler.is_compiling():
        return False
    return any(guard.irrevocable(dual, move) for move in moves)


def take_step(constraints: Constraints, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """Hand each multiplier its violation as gradient, step, take the gradients back, and project."""
    stale = [(p, p.grad) for group in dual.param_groups for p in group["params"] if p.grad is not None]
    for param, _ in stale:
        param.grad = None
    # A hook, or another library's optimizer, may write to the gradient; the violation is the user's.
    borrowed = isinstance(dual, DualOptimizer) and not (
        dual._optimizer_step_pre_hooks or _global_optimizer_pre_hooks
    )
    compiled = torch.compiler.is_compiling()
    partial = not compiled and any(move.seen is not None for move in moves)
    unseen = Unseen(dual, moves) if partial else None
    for move in moves:
        if move.rows is not None and compiled:
            continue
        gradient = move.error if move.rows is None else as_sparse_gradient(move)
        move.multiplier.grad = gradient if borrowed else gradient.clone()
    new = [] if borrowed else [move.multiplier for move in moves if not dual.state.get(move.multiplier)]
    try:
        dual.step()
        if compiled:
            _step_rows(dual, moves)
        elif unseen is not None:
            unseen.put_back()
    except RuntimeError as error:
        _explain_sparse(dual, moves, new, error)
        raise
    finally:
        for move in moves:
            move.multiplier.grad = None
        for param, gradient in stale:
            param.grad = gradient
    _project(constraints, dual, moves)


def take_guarded_step(
    constraints: Constraints, dual: torch.optim.Optimizer, moves: Sequence[Move]
) -> list[torch.Tensor]:
    """The same step where the host may not look: taken, and undone on the device if it was not good.

    Returns whether each error was finite, a boolean each that stays on the device.
    """
    finite = [torch.isfinite(move.error).all() for move in moves]
    good = torch.stack(finite).all()
    touched, before = guard.touched_by(dual, moves), guard.remember(dual, moves)
    kept = guard.keep(touched)
    safe = [Move(m.name, m.multiplier, torch.where(good, m.error, 0.0), m.rows, m.seen) for m in moves]
    take_step(constraints, dual, safe)
    guard.undo(touched, kept, good)
    guard.disown(dual, moves, before, good)
    return finite


def _project(constraints: Constraints, dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """Send the inequality multipliers that moved to >= 0, and to 0 where a restart asks for it."""
    whole: list[torch.Tensor] = []
    for move in moves:
        constraint = constraints[move.name]
        if not isinstance(constraint, Inequality):
            continue
        reset = move.error < 0 if constraint.restart else None
        if isinstance(dual, DualOptimizer) and (move.rows is not None or dual.has_integral(move.multiplier)):
            dual.project_(move.multiplier, move.rows, reset)
            continue
        # Another library's optimizer may have moved rows that its momentum remembers: all are projected.
        whole.append(move.multiplier)
        if reset is not None:
            move.multiplier.masked_fill_(_spread(reset, move), 0.0)
    if whole:
        torch._foreach_clamp_min_(whole, 0.0)


def _explain_sparse(
    dual: torch.optim.Optimizer, moves: Sequence[Move], new: Sequence[torch.Tensor], error: RuntimeError
) -> None:
    """If an optimizer failed over a sparse gradient, say whose it was and what takes one; drop what it began."""
    names = [move.name for move in moves if move.rows is not None]
    if not names or "sparse" not in str(error):
        return
    for multiplier in new:
        dual.state.pop(multiplier, None)
    raise RuntimeError(
        f"{type(dual).__name__} takes no Indexed violations, and {', '.join(map(repr, names))} came as such; "
        "use an optimizer of nupi, or torch's SGD, Adagrad or SparseAdam"
    ) from error


def _spread(seen: torch.Tensor, move: Move) -> torch.Tensor:
    """A mask over the rows that were seen, as a mask over the whole group."""
    if move.rows is None:
        return seen
    return torch.zeros_like(move.multiplier, dtype=torch.bool).index_copy_(0, move.rows, seen)


def _step_rows(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """The rows of a step that is compiled, which knows no sparse gradient."""
    for move in moves:
        if move.rows is not None:
            assert isinstance(dual, DualOptimizer)
            dual.step_rows(move.multiplier, move.rows, move.error)
