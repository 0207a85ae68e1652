"""`nupi.sweep`: one problem under a whole grid of dual methods and gains, as one batched program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from nupi.constraints.checks import checked_penalty
from nupi.optim.nupi import NuPI
from nupi.solve.checkpoint import Checkpoint, fingerprint
from nupi.solve.checks import check_run, check_switch
from nupi.solve.chunk import Plan
from nupi.solve.dispatch import run_elsewhere, run_here
from nupi.solve.grid import Axes, Grid, expand
from nupi.solve.methods import DEFAULT_PRIMAL, DualReader, Factory, known_to_self_tuned, read_primal
from nupi.solve.native import Native
from nupi.solve.problem import Constraints, Function, Kinds, Point, Problem
from nupi.solve.program import Setting, check_batched
from nupi.solve.progress import Counter, Progress, reporter
from nupi.solve.solution import History, Residuals, Solution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.constraints import Constraint
    from nupi.solve.dispatch import Executor

# With a matrix of multipliers of this many bytes, all tensors of its size together still fit a last-level cache.
_CHUNK_BYTES = 5 * 2**19
# For an executor: chunks for this many workers, but not so small that sending takes longer than running.
_PIECES = 64
_LEAST = 16


def sweep(
    objective: Function,
    x0: Point,
    *,
    grid: Grid,
    inequality: Constraints = None,
    equality: Constraints = None,
    constraints: Kinds = None,
    dual: Factory | Mapping[str, Factory] | None = None,
    primal: Factory | None = None,
    restart: bool = False,
    upper: float | None = None,
    penalty: float | Mapping[str, float] | None = None,
    steps: int = 1000,
    tol: float | None = None,
    history: Sequence[str] = (),
    every: int = 1,
    chunk: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    compiled: bool = False,
    executor: Executor | None = None,
) -> Solution:
    """Solve one problem once for every point of a grid of dual methods and gains.

    The problem is min f(x) subject to c(x) <= 0 and h(x) = 0.

    The functions are those of `minimize`: they take one x and do not depend on the grid. All runs advance together,
    with the updates of the dual optimizers. The results equal those of `minimize` with tol=None and the same
    arguments, up to rounding. (With a tol, `minimize` stops as soon as it is met; a sweep takes all steps.) A run that
    diverges to inf or nan does not affect the others.

    The functions are traced into tensor operations: their Python code runs a few times at the start, not at every
    step. They must be functions of x alone. State that changes between calls is refused if a second call at x0 shows
    it.

    On a CPU the traced step becomes a small C program, if a C compiler is installed. It runs on as many cores as torch
    may use (`torch.set_num_threads`); results do not depend on their number. Without a compiler, or if an operation
    has no form in C, torch runs the step. `Solution.engine` says which of the two ran.

    Args:
        objective: x to a scalar tensor.
        x0: where every run starts: a tensor or a dict of tensors. The sweep uses its dtype and device.
        grid: axis names to values. An axis is a keyword of the dual optimizer (`ki`, `kp`, `nu`, `init`,
            `form`, `lr`, `beta`, ...), or "restart", "penalty", or "dual" if `dual` is a dict. A list of grids is
            their union, for methods that have different gains.
        inequality: x to c(x), which must be <= 0; or a dict of such functions by name.
        equality: x to h(x), which must be 0; or a dict of such functions by name.
        constraints: constraints of any kind with their functions of x, by name, as for `minimize`.
        dual: a dual optimizer class, or `functools.partial` of one: NuPI (the default), UnifiedMomentum, PID,
            your own `DualOptimizer`, or torch's SGD and Adam with maximize=True. Or a dict of them by label, for the
            axis "dual".
        primal: torch's SGD or Adam, with its options in `functools.partial`; by default gradient descent with
            step size 0.01 and momentum 0.9.
        restart: whether a multiplier is set to 0 as soon as its inequality is strictly satisfied.
        upper: the largest multiplier of an inequality.
        penalty: the penalty of the augmented Lagrangian; see `Lagrangian`. On an axis of the grid, None is no penalty.
        steps: how many steps every run takes.
        tol: a run has converged if no KKT residual exceeds this at the end. (All runs take all steps.)
        history: what to record: any of "objective", "violations", "multipliers", "x".
        every: record one of every `every` steps.
        chunk: how many settings to advance together, which limits the memory; by default as many as fit into the
            cache.
        checkpoint: a directory for finished chunks. A sweep that was killed resumes there with the same call.
        progress: a function of (done, total); None shows a bar on a terminal, False none.
        compiled: compile the step with `torch.compile`. This takes up to half a minute, and may be worth it for long
            sweeps on a GPU. On a CPU the C program is faster.
        executor: runs the chunks elsewhere: a `concurrent.futures.ProcessPoolExecutor`, dask's
            `client.get_executor()`, submitit's executors, or any object with the same `submit`. If a worker dies, its
            chunk is sent again, up to three times.

    Example:
        >>> import torch, nupi
        >>> found = nupi.sweep(
        ...     lambda x: x.square().sum(),
        ...     torch.zeros(2, dtype=torch.float64),
        ...     inequality=lambda x: 1 - x.sum(),
        ...     grid={"ki": [0.05, 0.1], "kp": [0.0, 1.0]},
        ...     steps=400,
        ...     tol=1e-4,
        ... )
        >>> found
        Solution of a sweep over ki (2), kp (2)
          4 runs: 3 converged, 1 budget spent
          multipliers: inequality ()
          smallest KKT residual ...
        >>> found.at(ki=0.1, kp=1.0).multipliers["inequality"]
        tensor(1.0000, dtype=torch.float64)
    """
    problem = Problem(objective, x0, inequality, equality, constraints, upper=upper)
    check_run(steps, tol, history, every)
    check_switch("compiled", compiled)
    report = reporter(progress)
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be the path of a directory, or None, but {checkpoint!r} came")
    check_batched(problem)
    axes, points = expand(grid)
    reader = DualReader()
    kinds = {group.name: group.constraint for group in problem.groups}
    settings = [
        _setting(
            point, NuPI if dual is None else dual, reader, kinds, steps, restart=restart, penalty=penalty
        )
        for point in points
    ]
    plan = Plan(problem, read_primal(primal or DEFAULT_PRIMAL), steps, tol, tuple(history), every, compiled)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must have a method submit(function, *arguments), but {executor!r} came")
    size = _chunk_size(problem, chunk, len(settings), spread=executor is not None)

    # Sort so that settings of equal kind are consecutive; the order is restored at the end.
    order = sorted(range(len(settings)), key=lambda i: settings[i].word)
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    kept = Checkpoint(checkpoint, "" if checkpoint is None else _fingerprint(plan, settings, size))
    parts = [kept.load(number) for number in range(len(chunks))]
    jobs = {n: [settings[i] for i in chunks[n]] for n, part in enumerate(parts) if part is None}
    left = sum(map(len, jobs.values()))
    counter = Counter(report, total=len(settings) * steps, done=(len(settings) - left) * steps)
    engines: dict[str, None] = {}
    with Native(torch.get_num_threads(), steps, recorded=bool(history)) as native:
        if executor is None:
            finished = run_here(plan, jobs, native, counter.tick)
        else:
            finished = run_elsewhere(plan, jobs, executor)
        for number, results, engine in finished:
            kept.save(number, results)
            parts[number] = results
            engines[engine] = None
            counter.finish(len(jobs[number]) * steps)
    return _assemble(plan, parts, order, axes, points, ", ".join(engines) or "checkpoint")


def _setting(
    point: Mapping[str, Any],
    dual: Factory | Mapping[str, Factory],
    reader: DualReader,
    constraints: Mapping[str, Constraint],
    steps: int,
    *,
    restart: bool,
    penalty: float | Mapping[str, float] | None,
) -> Setting:
    options = dict(point)
    restart = options.pop("restart", restart)
    check_switch("restart", restart)
    penalties = checked_penalty(options.pop("penalty", penalty), constraints)
    if callable(dual):
        factory, label = dual, "dual"
    elif not isinstance(dual, Mapping):
        raise TypeError(
            "dual must be an optimizer class, functools.partial of one, or a dict of them by label, "
            f"but {dual!r} came"
        )
    else:
        known = ", ".join(map(str, dual))
        if "dual" not in options and len(dual) != 1:
            raise ValueError(
                f"dual is a dict of {len(dual)}: name the ones to use, as in grid={{'dual': [{known}]}}"
            )
        label = options.pop("dual", next(iter(dual), None))
        if label not in dual:
            raise ValueError(f"the grid asks for dual {label!r}, but dual= has only {known or 'nothing'}")
        factory, label = dual[label], f"dual {label!r}"
    rule, read = reader.read(factory, {**known_to_self_tuned(factory, steps), **options}, label)
    return Setting(rule, read, restart, penalties)


def _chunk_size(problem: Problem, chunk: int | None, settings: int, *, spread: bool) -> int:
    """The number of settings of a chunk; the same on every machine, so that a sweep can be resumed on another."""
    if chunk is None:
        size = max(64, _CHUNK_BYTES // (problem.size * problem.dtype.itemsize))
        return min(size, max(_LEAST, -(-settings // _PIECES))) if spread else size
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a number of settings, at least 1, but {chunk!r} came")
    return chunk


def _fingerprint(plan: Plan, settings: Sequence[Setting], size: int) -> str:
    # The device is left out on purpose: a sweep begun on one may end on another.
    runs = [
        (s.key, sorted(s.options.items()), s.restart, *([sorted(s.penalty.items())] if s.penalty else ()))
        for s in settings
    ]
    primal = (type(plan.primal[0]).__name__, sorted(plan.primal[1].items()))
    return fingerprint(plan.problem, runs, primal, plan.steps, plan.tol, plan.history, plan.every, size)


def _assemble(
    plan: Plan,
    parts: Sequence[dict[str, torch.Tensor] | None],
    order: Sequence[int],
    axes: Axes,
    points: tuple[dict[str, Any], ...],
    engine: str,
) -> Solution:
    problem = plan.problem
    shape = tuple(len(values) for values in axes.values())
    back = torch.tensor(order, device=problem.device).argsort()

    def gather(name: str) -> torch.Tensor:
        """All chunks of a result, in the order of the grid, with the axes first."""
        whole = torch.cat([part[name].to(problem.device) for part in parts if part is not None], dim=-1)
        whole = whole.index_select(-1, back).movedim(-1, 0)
        return whole.reshape((*shape, *whole.shape[1:])).contiguous()

    history: History = {}
    if plan.history:
        history["step"] = torch.arange(0, plan.steps, plan.every, device=problem.device)
    for name in plan.history:
        if name == "objective":
            history[name] = gather("history/objective")
        elif name == "x":
            history[name] = cast(
                "Any", problem.point({leaf: gather(f"history/x/{leaf}") for leaf in problem.start})
            )
        else:
            history[name] = problem.by_name(gather(f"history/{name}"))
    return Solution(
        x=problem.point({name: gather(f"x/{name}") for name in problem.start}),
        multipliers=problem.by_name(gather("theta")),
        objective=gather("objective"),
        residuals=Residuals(gather("stationarity"), gather("feasibility"), gather("complementarity")),
        status=gather("status"),
        steps=gather("steps"),
        history=history,
        axes=axes,
        settings=points,
        engine=engine,
    )
