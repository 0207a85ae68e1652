"""Take one step of a dual optimizer over the multipliers of some constraints: check, step, project, undo on errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.ascent import other_optimizers as others
from nupi.ascent.finite import NonFiniteMultiplierError, NonFiniteViolationError, not_finite
from nupi.ascent.snapshot import Snapshot, can_undo_on_device
from nupi.optim.base import SAFE, DualOptimizer, Work
from nupi.violations import Move
from nupi.violations.values import host_may_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.distributed.together import Together

_FEW = 10_000  # up to this many errors of several groups, it is faster to join them than to check each


def check_dual(
    dual: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]
) -> list[dict[str, Any]]:
    """The param group of each multiplier. Raises if the optimizer does not have it, or would minimize over it."""
    if not isinstance(dual, torch.optim.Optimizer):
        several = isinstance(dual, (list, tuple))
        came = f"a {type(dual).__name__}" if several else repr(dual)
        fix = "; call ascend once for each, with the violations of its constraints" if several else ""
        raise TypeError(f"dual must be a torch optimizer over the multipliers, but {came} came{fix}")
    held = {id(param): group for group in dual.param_groups for param in group["params"]}
    groups = []
    for name, multiplier in named:
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
        groups.append(group)
    return groups


def steps_in_graph(dual: torch.optim.Optimizer) -> bool:
    """Whether a compiled graph can contain the step: only that of nupi's own optimizers, if they do not measure.

    Other optimizers break the graph themselves, or take sparse gradients, which it does not support. And their first
    state need not be 0, so a refused first step could not be undone.
    """
    if isinstance(dual, DualOptimizer):
        return not dual.measures
    return not isinstance(dual, torch.optim.Optimizer)


def take_step(
    dual: torch.optim.Optimizer, moves: Sequence[Move], together: Together | None = None
) -> list[torch.Tensor] | None:
    """Move and project multipliers, or raise and leave everything as it was. Autograd is off.

    Returns None. If the host must not read values, returns a boolean tensor on the device for each error: whether it
    was finite. If any was not, the step has been undone there.

    Args:
        dual: the optimizer that moves them.
        moves: the multipliers to move, and their errors.
        together: with many processes, the other ranks, which move or refuse together with this one.
    """
    groups = check_dual(dual, [(move.name, move.multiplier) for move in moves])
    if isinstance(dual, DualOptimizer):
        dual.check_gains()
    else:
        moves = others.in_their_layout(dual, moves)
    if together is None and not _host_may_look(dual, moves):
        return _take_on_device(dual, groups, moves)
    risky = _refuse_non_finite(moves)
    risky = risky or not isinstance(dual, DualOptimizer) or dual.may_overflow
    direct = isinstance(dual, DualOptimizer) and not dual.watched
    # A hook may take a step inside this step; its copies must not overwrite those of this one.
    kept = Snapshot(dual, moves, alone=direct)
    failure: Exception | None = None
    try:
        _move(dual, groups, moves, kept, direct=direct)
        if risky:
            _refuse_overflow(dual, moves)
    except BaseException as error:
        kept.undo()
        if not isinstance(error, Exception):
            raise
        failure = _overflow(error, moves)
        if together is None:
            if failure is error:
                raise
            raise failure from error
    if together is not None:
        try:
            together.confirm(failure)
        except BaseException:
            kept.undo()
            raise
    return None


def _move(
    dual: torch.optim.Optimizer,
    groups: list[dict[str, Any]],
    moves: Sequence[Move],
    kept: Snapshot,
    *,
    direct: bool,
) -> None:
    """Take the step and project. nupi's optimizers do both; `direct`: no hook needs the gradients."""
    if direct:
        assert isinstance(dual, DualOptimizer)
        if not torch.compiler.is_compiling():
            dual._opt_called = True  # type: ignore[attr-defined] # so that a scheduler knows of the step
        dual.apply(
            [
                Work(group, move.multiplier, move.error, move.bounds, move.rows)
                for group, move in zip(groups, moves, strict=True)
            ]
        )
        return
    _step_on_gradients(dual, moves)
    if not isinstance(dual, DualOptimizer):
        kept.undo_masked()
        for move in moves:
            if move.bounds is not None:
                # Momentum may have moved rows that have no error now, so all are projected, but none is restarted.
                error = move.error if move.rows is None else _spread(move)
                move.bounds.project_(move.multiplier, error)


def _step_on_gradients(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """Set each multiplier's gradient to its error, step, and restore the gradients."""
    held = [param for group in dual.param_groups for param in group["params"]]
    stale = [(param, param.grad) for param in held if param.grad is not None]
    for param, _ in stale:
        param.grad = None
    if isinstance(dual, DualOptimizer):
        dual._bounds = {id(move.multiplier): move.bounds for move in moves}
    else:
        others.make_state_dense(dual, moves)
    for move in moves:
        move.multiplier.grad = others.as_gradient(move)
    try:
        dual.step()
    except RuntimeError as error:
        raise others.explained(dual, moves, error) from error
    finally:
        dual.__dict__.pop("_bounds", None)
        for move in moves:
            move.multiplier.grad = None
        for param, gradient in stale:
            param.grad = gradient


def _spread(move: Move) -> torch.Tensor:
    """An error of some rows as an error of the whole group, with 0 for the others."""
    assert move.rows is not None
    return torch.zeros_like(move.multiplier).index_copy_(0, move.rows, move.error)


def _host_may_look(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> bool:
    """Whether the host may read the errors' values: it is free, or cannot be avoided."""
    for move in moves:
        if not host_may_read(move.error):
            break
    else:
        return True
    if torch.compiler.is_compiling():
        return False
    return not all(can_undo_on_device(dual, move) for move in moves)


def _refuse_non_finite(moves: Sequence[Move]) -> bool:
    """Raise, naming the constraints, if any error is not finite. Returns whether a step on them could overflow."""
    # One norm checks all errors at once; only if it is large, each is checked.
    if length([move.error for move in moves]) <= SAFE:
        return False
    bad = not_finite(moves, [[move.error] for move in moves])
    if bad:
        raise NonFiniteViolationError(bad)
    return True


def length(errors: Sequence[torch.Tensor]) -> float:
    """The norm of all errors as one vector, or the largest norm if they are very many; nan or inf if one is not finite.

    It may also be inf if all numbers are finite and very large, so a large norm needs a check of each.
    """
    if len(errors) == 1 and errors[0].dim() == 1:
        return float(torch.dot(errors[0], errors[0]).item() ** 0.5)
    if sum(error.numel() for error in errors) > _FEW:
        return float(max(torch.linalg.vector_norm(error).nan_to_num(torch.inf).item() for error in errors))
    flat = [error if error.dim() == 1 else error.reshape(-1) for error in errors]
    return float(torch.linalg.vector_norm(torch.cat(flat)).item())


def _refuse_overflow(dual: torch.optim.Optimizer, moves: Sequence[Move]) -> None:
    """Raise if finite errors have made a multiplier or its state infinite."""
    touched = []
    for move in moves:
        state = dual.state.get(move.multiplier, {})
        values = [value for value in state.values() if isinstance(value, torch.Tensor)]
        touched.append(
            [move.multiplier, *(value.coalesce().values() if value.is_sparse else value for value in values)]
        )
    bad = not_finite(moves, touched)
    if bad:
        raise NonFiniteMultiplierError(bad)
    if isinstance(dual, DualOptimizer):
        dual.look_for_large_state()


def _overflow(error: Exception, moves: Sequence[Move]) -> Exception:
    """The error itself; if it is torch's error for a gain too large for the multipliers' dtype, one that says so."""
    if isinstance(error, RuntimeError) and "without overflow" in str(error):
        return NonFiniteMultiplierError([move.name for move in moves])
    return error


def _take_on_device(
    dual: torch.optim.Optimizer, groups: list[dict[str, Any]], moves: Sequence[Move]
) -> list[torch.Tensor]:
    """Take the step without reading values, and undo it on the device if a number is not finite."""
    kept = Snapshot(dual, moves)
    direct = isinstance(dual, DualOptimizer) and not dual.watched
    finite = [torch.isfinite(move.error).all() for move in moves]
    # Not `_replace`, which torch 2.6 cannot compile.
    safe = [
        Move(m.name, m.multiplier, torch.where(fine, m.error, 0.0), m.bounds, m.rows, m.mask, m.partial)
        for m, fine in zip(moves, finite, strict=True)
    ]
    if torch.compiler.is_compiling():
        _move(dual, groups, safe, kept, direct=direct)
    else:
        try:
            _move(dual, groups, safe, kept, direct=direct)
        except BaseException:
            kept.undo()
            raise
    for i, move in enumerate(moves):
        touched = [
            move.multiplier,
            *(v for v in dual.state.get(move.multiplier, {}).values() if _is_float(v)),
        ]
        for tensor in touched:
            finite[i] = finite[i] & torch.isfinite(tensor).all()
    kept.undo_unless(torch.stack(finite).all())
    return finite


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided
