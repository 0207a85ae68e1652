"""Run one chunk of a sweep: take all steps, record the history, and drop settings that diverge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nupi.solve.program import Program, Setting, kkt, penalties, pulled_back, violated_by
from nupi.solve.reach import Samples, flat, small_or_opposed, stride
from nupi.solve.solution import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nupi.solve.native import Native
    from nupi.solve.problem import Problem
    from nupi.solve.reach import Pull
    from nupi.solve.rules import TorchRule

RECORDABLE = ("objective", "violations", "multipliers", "x")

_STRIDE = 200  # steps between two checks for diverged settings
_RETIRE = 0.25  # if more than this share of the settings has diverged, it saves time to drop them


@dataclass(frozen=True)
class Plan:
    """What all chunks of a sweep share: the problem, the primal optimizer, the options."""

    problem: Problem
    primal: tuple[TorchRule, dict[str, Any]]
    steps: int
    tol: float | None
    history: tuple[str, ...]
    every: int
    compiled: bool


def run_chunk(
    plan: Plan, settings: Sequence[Setting], tick: Callable[[int], None], native: Native | None = None
) -> dict[str, torch.Tensor]:
    """Run all steps of the settings; the last dimension of every returned tensor is the setting.

    A setting has diverged if its multipliers or its point are no longer finite. It cannot affect the others, because
    each has its own column of the batch. But it costs time, so if many have diverged, they are dropped.

    Args:
        plan: the sweep.
        settings: the settings of this chunk, in blocks.
        tick: called with the number of setting-steps done since the last call.
        native: compiled kernels, used if they can run these steps.
    """
    problem, width = plan.problem, len(settings)
    program = Program(problem, settings, plan.primal, compiled=plan.compiled, native=native)
    results = _results(plan, width)
    alive = torch.arange(width, device=problem.device)
    _observe(plan, program, 0, results, alive)
    samples, most = Samples(width, plan.steps, problem.device), min(_STRIDE, stride(plan.steps))
    done = 1
    while done < plan.steps and program.width:
        stop = min(done + most, plan.steps)
        _advance(plan, program, done, stop, results, alive)
        tick(program.width * (stop - done))
        done = stop
        samples.add(violated_by(problem, program.x), program.theta, alive)
        finite = program.finite()
        lost = int((~finite).sum().item())
        if lost >= max(1, _RETIRE * program.width) and done < plan.steps:
            _store(program, results, alive, done)
            columns = finite.nonzero().squeeze(-1)
            tick(lost * (plan.steps - done))
            alive = alive[columns]
            program.keep(columns)
    _store(program, results, alive, done)
    return _judge(plan, results, settings, samples)


def _results(plan: Plan, width: int) -> dict[str, torch.Tensor]:
    problem = plan.problem
    kind: dict[str, Any] = {"dtype": problem.dtype, "device": problem.device}
    results = {f"x/{name}": torch.zeros(*leaf.shape, width, **kind) for name, leaf in problem.start.items()}
    results["theta"] = torch.zeros(problem.size, width, **kind)
    results["steps"] = torch.zeros(width, dtype=torch.int64, device=problem.device)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "objective": {"": ()},
        "violations": {"": (problem.size,)},
        "multipliers": {"": (problem.size,)},
        "x": {f"/{name}": tuple(leaf.shape) for name, leaf in problem.start.items()},
    }
    records = len(range(0, plan.steps, plan.every))
    for record in plan.history:
        for suffix, shape in shapes[record].items():
            # A setting that is dropped has nan in the rest of its history.
            results[f"history/{record}{suffix}"] = torch.full((records, *shape, width), torch.nan, **kind)
    return results


def _advance(
    plan: Plan,
    program: Program,
    start: int,
    stop: int,
    results: dict[str, torch.Tensor],
    alive: torch.Tensor,
) -> None:
    """Take steps start .. stop - 1, and record those that `history` and `every` ask for."""
    if not plan.history:
        program.advance(stop - start)
        return
    step = start
    while step < stop:
        due = -(-step // plan.every) * plan.every
        if due > step:
            program.advance(min(due, stop) - step)
        if due < stop:
            _observe(plan, program, due, results, alive)
        step = min(due, stop - 1) + 1


def _observe(
    plan: Plan, program: Program, step: int, results: dict[str, torch.Tensor], alive: torch.Tensor
) -> None:
    """Take step number `step` and record its history."""
    seen: dict[str, torch.Tensor] = {}
    if "x" in plan.history:
        seen = {f"x/{name}": leaf.clone() for name, leaf in program.x.items()}
    value, e = program.observe() if step else program.first()
    seen |= {"objective": value, "violations": e, "multipliers": program.theta}
    for name, tensor in seen.items():
        if f"history/{name}" in results:
            results[f"history/{name}"][step // plan.every][..., alive] = tensor


def _store(program: Program, results: dict[str, torch.Tensor], alive: torch.Tensor, done: int) -> None:
    for name, leaf in program.x.items():
        results[f"x/{name}"][..., alive] = leaf
    results["theta"][:, alive] = program.theta
    results["steps"][alive] = done


def _judge(
    plan: Plan, results: dict[str, torch.Tensor], settings: Sequence[Setting], samples: Samples
) -> dict[str, torch.Tensor]:
    problem = plan.problem
    leaves = {name: results[f"x/{name}"] for name in problem.start}
    value, residuals = kkt(problem, leaves, results["theta"], penalties(problem, settings))
    # f may overflow, or leave its domain, while x and even its gradient stay finite. A violation that is not finite
    # shows in the feasibility or, times its multiplier, in the complementarity.
    finite = torch.isfinite(value) & torch.isfinite(residuals.worst) & torch.isfinite(results["theta"]).all(0)
    for leaf in leaves.values():
        finite &= torch.isfinite(leaf).reshape(-1, leaf.shape[-1]).all(0)
    status = torch.full_like(results["steps"], Status.BUDGET_SPENT)
    status[_out_of_reach(problem, leaves, results["theta"], samples)] = Status.INFEASIBLE
    if plan.tol is not None:
        status[residuals.worst <= plan.tol] = Status.CONVERGED
    status[~finite] = Status.DIVERGED
    return results | {
        "objective": value,
        "stationarity": residuals.stationarity,
        "feasibility": residuals.feasibility,
        "complementarity": residuals.complementarity,
        "status": status,
    }


def _out_of_reach(
    problem: Problem, leaves: dict[str, torch.Tensor], theta: torch.Tensor, samples: Samples
) -> torch.Tensor:
    """Which settings seem infeasible, by samples of their runs and by the gradients at their last points."""
    stay = samples.stay_violated()
    columns = stay.nonzero().squeeze(-1)
    if not len(columns):
        return stay
    ended = {name: leaf.index_select(-1, columns) for name, leaf in leaves.items()}
    start = {name: leaf.unsqueeze(-1).expand_as(ended[name]) for name, leaf in problem.start.items()}

    def pull_at(x: dict[str, torch.Tensor]) -> Pull:
        return lambda weights: flat(pulled_back(problem, x, weights, objective=0.0)[2].values())

    opposed = small_or_opposed([pull_at(ended), pull_at(start)], theta.index_select(-1, columns))
    return stay.index_copy(0, columns, opposed)
