"""The sweeps of the SVM targets: the paper's grids and methods, on `nupi.sweep`."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import nupi
from nupi.paper.svm.problem import svm
from nupi.solve.checkpoint import AnotherSweepError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nupi.paper.runner import TargetRun
    from nupi.solve.grid import Grid

STEPS = 5_000
CONVERGED = 1e-2  # the distance to lambda* below which a run counts as converged
RUNAWAY = 1e3  # grey in the paper's heat maps

SENSITIVITY_KP = (1.0, 5.0, 10.0, 50.0, 70.0, 100.0, 200.0)
MAP_KP = (-50.0, -40.0, -30.0, -20.0, -10.0, -5.0, 0.0, 5.0, *(float(kp) for kp in range(10, 101, 10)))
BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)

PRIMAL = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
NUPI = partial(nupi.NuPI, init="bumpless", form="velocity")  # as the authors ran it at nu = 0
DUALS = {
    "nupi": NUPI,
    "nupi-zero": partial(nupi.NuPI, init="zero", form="velocity"),  # the same with a kick, for comparison
    "ga": partial(torch.optim.SGD, maximize=True),
    "restart": partial(torch.optim.SGD, maximize=True),
    "polyak": partial(nupi.UnifiedMomentum, gamma=0.0),
    "nesterov": partial(nupi.UnifiedMomentum, gamma=1.0),
    "adam": partial(torch.optim.Adam, maximize=True),
    "pid": nupi.PID,
}


def step_sizes(finer: int = 1) -> tuple[float, ...]:
    """The paper's 20 step sizes, log-spaced from 1e-5 to 10^1.5, or a grid `finer` times as dense."""
    return tuple(torch.logspace(-5, 1.5, 19 * finer + 1, dtype=torch.float64).tolist())


def thinned(values: tuple[float, ...], scale: str, few: tuple[float, ...]) -> tuple[float, ...]:
    """All values at the paper's scale, `few` of them at smoke scale."""
    return few if scale == "smoke" else values


def baselines(scale: str) -> list[dict[str, Sequence[Any]]]:
    """Every method of the paper but nuPI, as grids."""
    betas = thinned(BETAS, scale, (0.3,))
    sizes = step_sizes()
    return [
        {"dual": ["ga"], "lr": sizes},
        {"dual": ["restart"], "lr": sizes, "restart": [True]},
        {"dual": ["polyak", "nesterov"], "beta": [*(-beta for beta in reversed(betas)), *betas], "lr": sizes},
        {"dual": ["adam"], "lr": sizes},
    ]


def run_sweep(
    run: TargetRun | None, grid: Grid, description: str = "SVM sweep", **options: Any
) -> nupi.Solution:
    """`nupi.sweep` on the SVM from x = 0 with the paper's primal optimizer; the grid names its dual methods.

    What is finished is kept in the target's directory, so that a target that was killed goes on from there.
    A sweep with a history is not kept: it has few settings, and is sooner run again than written.
    """
    problem = svm()
    defaults: dict[str, Any] = {"steps": STEPS, "dual": DUALS, "primal": PRIMAL}
    kept = None
    if run is not None and not options.get("history"):
        kept = run.out / "chunks" / f"{run.scale} {description}".replace(" ", "-")

    def sweep() -> nupi.Solution:
        return nupi.sweep(
            problem.objective,
            torch.zeros(5, dtype=torch.float64),
            inequality=problem.violations,
            grid=grid,
            progress=False if run is None else _bar(run, description),
            checkpoint=kept,
            **(defaults | options),
        )

    try:
        return sweep()
    except AnotherSweepError:  # left by another version of the target
        assert kept is not None
        shutil.rmtree(kept)
        return sweep()


def _bar(run: TargetRun, description: str) -> Callable[[int, int], None]:
    """The runner's bar, which is an iterator, as the function of (done, total) that a sweep reports to."""
    ticks = run.progress(range(100), description)
    shown = 0

    def report(done: int, total: int) -> None:
        nonlocal shown
        while shown <= 100 * done // total:
            next(ticks, None)
            shown += 1

    return report
