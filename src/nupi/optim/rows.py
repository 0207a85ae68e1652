"""Moving some rows of a parameter: gather them, move them, write them back. Each row takes its own first step.

If some rows of a parameter have not been moved yet, its state has a mask `started` over its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.rule import rows_like, widened

if TYPE_CHECKING:
    from nupi.constraints import Bounds
    from nupi.optim.base import DualOptimizer, Gains, State, Work
    from nupi.rule import Gain


def move_rows(dual: DualOptimizer, work: Work) -> None:
    """One step of some rows. A row that occurs twice has the same error both times, and moves once."""
    group, param, rows, leading = work.group, work.param, work.rows, work.leading
    assert rows is not None
    if leading > 1 and not param.is_contiguous():
        raise ValueError(
            f"a sparse gradient over {leading} dimensions needs a contiguous parameter; use .contiguous()"
        )
    flat = param.view(-1, *param.shape[leading:])
    wide = widened(param.dtype)
    theta, e = flat.index_select(0, rows).to(wide), work.error.to(wide)
    # Gains are gathered before they are multiplied, so the cost depends on the rows that move, not on the parameter.
    numbers = {name: _gain_of_rows(group[name], work, flat, theta) for name in dual.gain_names}
    gains = dual.scaled_gains({**group, **numbers})
    # How many steps of the optimizer there are, on average, for each step of a row; compiled, rows may occur twice.
    group = {**group, "period": max(1.0, len(flat) / max(1, len(rows)))}

    started = _started(dual, work)
    kept = dual.state.get(param, {})
    whole = {slot: value.view_as(flat) for slot, value in kept.items() if slot != "started"}
    state: State = {slot: tensor.index_select(0, rows) for slot, tensor in whole.items()}
    if started is None:
        dual.move(theta, state, e, gains, group, work.bounds, first=False)
    else:
        marks = started.view(-1, *started.shape[leading:])
        move_mixed(dual, theta, state, e, gains, group, work.bounds, marks.index_select(0, rows))
        marks.index_fill_(0, rows, True)
    flat.index_copy_(0, rows, theta.to(param.dtype))
    for slot, tensor in whole.items():
        moved = state[slot]
        assert isinstance(moved, torch.Tensor)
        tensor.index_copy_(0, rows, moved)


def move_mixed(
    dual: DualOptimizer,
    theta: torch.Tensor,
    state: State,
    e: torch.Tensor,
    gains: Gains,
    group: dict[str, Any],
    bounds: Bounds | None,
    started: torch.Tensor,
) -> None:
    """A step that is the first one for some rows: compute a first and a later step, choose by mask `started`."""
    lasting = dual.lasting_slots
    begun, opening = (
        theta.clone(),
        {
            slot: value.clone() if slot in lasting else torch.zeros_like(value)  # type: ignore[union-attr, arg-type]
            for slot, value in state.items()
        },
    )
    dual.move(begun, {**opening}, e, gains, group, bounds, first=True)
    dual.move(theta, state, e, gains, group, bounds, first=False)
    old = rows_like(started, theta)
    theta.copy_(torch.where(old, theta, begun))
    for slot, value in state.items():
        assert isinstance(value, torch.Tensor)
        value.copy_(torch.where(old, value, opening[slot]))


def _started(dual: DualOptimizer, work: Work) -> torch.Tensor | None:
    """Which rows have been moved before; None if all have, or if no state is kept."""
    param, leading = work.param, work.leading
    _, first = dual.ready_state(work)
    if param not in dual.state:
        return None
    kept = dual.state[param]
    if first:
        kept["started"] = torch.zeros(param.shape[:leading], dtype=torch.bool, device=param.device)
    started: torch.Tensor | None = kept.get("started")
    if started is not None and started.dim() < leading:
        # The mask was over coarser rows than these: refine it.
        started = kept["started"] = rows_like(started, param).expand(param.shape[:leading]).contiguous()
    return started


def _gain_of_rows(gain: Gain, work: Work, flat: torch.Tensor, theta: torch.Tensor) -> Gain:
    """The gain of the rows that move, if each row has its own."""
    if not isinstance(gain, torch.Tensor):
        return gain
    assert work.rows is not None
    if gain.dim() == work.param.dim() and gain.shape[0] > 1 and work.leading == 1:
        gain = gain.index_select(0, work.rows)
    elif work.leading > 1 and gain.dim() >= flat.dim():
        gain = gain.expand(work.param.shape).reshape(flat.shape).index_select(0, work.rows)
    return gain.to(theta.device, theta.dtype)
