"""From a call of the Lagrangian to the plant of its constraints, on one process or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.optim import self_tuning, tuning_warnings
from nupi.optim.evaluated import evaluated
from nupi.optim.self_tuning import TINY
from nupi.optim.shown import MOST_SAMPLED, sample, see, some_of
from nupi.optim.taking_in import take_in
from nupi.plant.optimizers import scalings
from nupi.plant.response import MOST_NUMBERS, Plant, curvature, measure
from nupi.plant.shards import Shards, is_sharded
from nupi.rule import rows_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.lagrangian import Lagrangian
    from nupi.optim.base import DualOptimizer
    from nupi.optim.evaluated import Evaluate
    from nupi.optim.shown import Shown
    from nupi.plant.optimizers import Scaling
    from nupi.violations import Target, Violation

ROWS = ("measured", "response", "balance", "slope", "speed", "curvature")
FAINT = 1e-12  # a balance below this is that of a loss without a gradient


def observe(
    dual: DualOptimizer,
    primal: Sequence[torch.optim.Optimizer],
    lagrangian: Lagrangian,
    loss: torch.Tensor,
    paired: Sequence[tuple[Target, Violation]],
    evaluate: Evaluate | None = None,
) -> float | None:
    """Measure the plant and write it into the state of `dual`; None if it could not be measured yet.

    The loss and the violations are those of the batch, or of `evaluate` if it is given.

    Returns how near it is to the plant that was known before: the smallest ratio, in [0, 1].

    Ranks of a distributed run measure on their own batches and join what they found (the mean of the logarithms),
    so that all of them hold the same numbers. All of them take part, also one whose batch shows nothing. Nothing is
    written unless all of them could measure.
    """
    group = dual.param_groups[0]
    found = scalings(primal)
    held = [m for m in map(lagrangian.get_parameter, lagrangian.constraints) if dual.state.get(m)]
    if found is None or not held:
        return None
    # The last number says on how many ranks something went wrong.
    notes = torch.zeros(
        len(ROWS), sum(m.numel() for m in held) + 1, dtype=torch.float64, device=held[0].device
    )
    failure: Exception | None = None
    try:
        if evaluate is not None:
            of_the_loop = loss
            loss, violations = evaluated(evaluate)
            paired = lagrangian._paired(violations)
            if group["measured_at"] == 0:
                _check_units(dual, lagrangian, of_the_loop, loss, paired)
        places = dict(zip(map(id, held), notes[:, :-1].split([m.numel() for m in held], dim=1), strict=True))
        _note(dual, found, lagrangian, loss, [p for p in paired if id(p[0].multiplier) in places], places)
    except Exception as error:  # noqa: BLE001 - other ranks are waiting
        failure = error
        notes.zero_()[0, -1] = 1.0
    lagrangian.sum_over_ranks(notes)
    if failure is not None:
        raise failure
    if lagrangian.many_ranks and float(notes[0, -1]):
        raise RuntimeError("another rank could not measure the response of its model; see its error")
    parts = notes[:, :-1].split([m.numel() for m in held], dim=1)
    near = [take_in(dual.state[m], note, group).min() for m, note in zip(held, parts, strict=True)]
    found_nothing = not bool(notes[0, :-1].any())  # as on a batch with nan; that agrees with nothing known
    return 0.0 if found_nothing else float(torch.stack(near).min())


def _check_units(
    dual: DualOptimizer,
    lagrangian: Lagrangian,
    of_the_loop: torch.Tensor,
    loss: torch.Tensor,
    paired: Sequence[tuple[Target, Violation]],
) -> None:
    """Warn if what evaluate returns is far larger or smaller than what the loop gives.

    The violations that move the multipliers are on the same data, so both should be nearly equal.
    """
    # Only one way round: a batch that the model has learned by heart has a loss as small as you like.
    measured, given = float(loss.detach()), float(of_the_loop.detach())
    if abs(measured) < abs(given):
        tuning_warnings.warn_of_units("a loss", measured, given)
    for target, violation in paired:
        state = dual.state.get(target.multiplier)
        if state:
            errors = see(target, violation, lagrangian.ranks_of(violation)).errors.detach()
            largest = float(errors.abs().max()) if len(errors) else 0.0
            given = float(state["last"].abs().max())
            tuning_warnings.warn_of_units(f"a violation of {target.name!r}", largest, given)


def shows_unknown(
    dual: DualOptimizer, lagrangian: Lagrangian, paired: Sequence[tuple[Target, Violation]]
) -> bool:
    """Whether the batch of any rank shows a constraint that has been moved, and whose response is not known."""
    found = 0
    for target, violation in paired:
        state = dual.state.get(target.multiplier)
        move = violation.moving().error(target) if state else None
        if state and move is not None:
            unknown = state["response"] == 0
            if move.rows is not None:
                unknown = unknown[move.rows]
            elif move.mask is not None:
                unknown = unknown & rows_like(move.mask, unknown)
            found += int(unknown.any())
    flag = torch.tensor(
        float(found), device=lagrangian.get_parameter(next(iter(lagrangian.constraints))).device
    )
    lagrangian.sum_over_ranks(flag)
    return bool(flag > 0)


def count_unknown(dual: DualOptimizer) -> int:
    """How many constraints that have been moved have no response yet."""
    return sum(int((state["response"] == 0).sum()) for state in dual.state.values() if "response" in state)


def _note(
    dual: DualOptimizer,
    found: list[Scaling],
    lagrangian: Lagrangian,
    loss: torch.Tensor,
    paired: Sequence[tuple[Target, Violation]],
    places: dict[int, torch.Tensor],
) -> None:
    """Measure on this rank's batch, and write it down; what is no number is left out."""
    shown = [see(target, violation, lagrangian.ranks_of(violation)) for target, violation in paired]
    shown = [one for one in shown if one.errors.requires_grad]
    _check_shards(found, shown)
    if not shown or not loss.requires_grad:
        return
    numbers = sum(one.parameter.numel() for one in found)
    most = min(MOST_SAMPLED, max(2, MOST_NUMBERS // max(1, numbers)))
    shown = [some_of(one, most, dual.param_groups[0]["taken"]) for one in shown]
    plant, bent = _measured(dual, found, loss, shown)
    counts = [len(one.errors) for one in shown]
    parts = [part.split(counts) for part in (plant.response, plant.balance, plant.slope)]
    for one, b, balance, slope in zip(shown, *parts, strict=True):
        usable = (b > 0) & b.isfinite() & balance.isfinite()
        rows = torch.stack(
            [
                torch.ones_like(b, dtype=torch.float64),
                b.double().clamp(min=TINY).log(),
                balance.double().clamp(min=FAINT).log(),
                slope.double().clamp(min=TINY).log(),
                plant.speed.double().expand_as(b),
                bent.double().expand_as(b),
            ]
        )
        whole = places[id(one.target.multiplier)]
        rows = torch.where(usable, rows, 0.0).to(whole.device)
        if one.elements is None:
            whole.copy_(rows)
        else:
            whole[:, one.elements] = rows
            _fill_(whole)


def _fill_(whole: torch.Tensor) -> None:
    """Give constraints that this batch does not show the mean of those that it shows."""
    count = whole[0].sum().clamp(min=1.0)
    typical = whole.sum(1, keepdim=True) / count
    whole.copy_(torch.where(whole[0] > 0, whole, typical))


def _check_shards(found: list[Scaling], shown: list[Shown]) -> None:
    """Where parameters are sharded, all processes take a backward pass of a constraint together, or would wait."""
    shards = Shards([one.parameter for one in found])
    if not shards.any:
        return
    rows = any(one.share is not None for one in shown)
    if not shards.agree(-1 if rows else sum(len(one.errors) for one in shown)) or rows:
        raise TypeError(
            "the model's parameters are sharded (fully_shard), and processes show different constraints, as Indexed "
            "violations do: their response cannot be measured together. Give each process all constraints (Averaged "
            "with a count of 0 for what its batch lacks), or build SelfTuned without primal"
        )


def _measured(
    dual: DualOptimizer, found: list[Scaling], loss: torch.Tensor, shown: list[Shown]
) -> tuple[Plant, torch.Tensor]:
    """The plant on this batch, and the curvature if there are several primal steps to a dual step."""
    group = dual.param_groups[0]
    errors = torch.cat([one.errors for one in shown])
    theta = torch.cat([one.part(one.target.multiplier) for one in shown]).to(errors.dtype)
    wanted, worst = [], []
    for one in shown:
        state, size = dual.state[one.target.multiplier], one.target.constraint.infeasibility
        wanted.append(size(one.part(state["last"])))
        worst.append(torch.maximum(state["worst"], size(state["last"])).flatten())
    wants = torch.cat(wanted).to(errors.dtype)
    live = (theta != 0) | (wants > 0)
    live = live | ~live.any()
    need = float(self_tuning.SPEED / group["steps"] * torch.cat(worst).norm() / group["per_step"])
    signs = torch.Generator().manual_seed(group["taken"])
    counts = [len(one.errors) for one in shown]
    try:
        samples = [sample(one, dual.state[one.target.multiplier]) for one in shown]
        plant = measure(found, loss, errors, theta, live, wants, counts, need, signs, samples)
        bent = torch.zeros((), dtype=errors.dtype, device=errors.device)
        sharded = is_sharded(found[0].parameter)  # which have no second derivatives
        if (group["per_step"] > 1 or any(samples)) and not sharded:
            parameters = [one.parameter for one in found]
            bent = _curvature(parameters, plant.metric, loss + torch.dot(theta, errors), errors, signs)
    except RuntimeError as error:
        if "double backward" in str(error):
            raise RuntimeError(
                "with several primal steps to a dual step, the curvature is measured, which takes a second derivative "
                "that a compiled model does not have; give SelfTuned an `evaluate` that calls the uncompiled model"
            ) from error
        if "donated" not in str(error):
            raise
        raise RuntimeError(
            "the response cannot be measured through this compiled model, because its backward pass frees its "
            "buffers; set torch._functorch.config.donated_buffer = False before the model is compiled, or build "
            "SelfTuned without primal"
        ) from error
    return plant, bent


def _curvature(
    parameters: list[torch.Tensor],
    metric: list[torch.Tensor],
    lagrangian: torch.Tensor,
    errors: torch.Tensor,
    signs: torch.Generator,
) -> torch.Tensor:
    """The curvature, or none where a part of the model has no second derivative, as torch's fused attention."""
    try:
        return curvature(parameters, metric, lagrangian, errors, signs)
    except RuntimeError as error:
        if not any(said in str(error) for said in ("is not implemented", "once_differentiable")):
            raise
        return torch.zeros((), dtype=errors.dtype, device=errors.device)
