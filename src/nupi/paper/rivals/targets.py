"""Beside other libraries: their published benchmarks, their own code where it installs, and one model of ours."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from nupi.paper import jobs
from nupi.paper.rivals import reductions, training
from nupi.paper.rivals.problems import PROBLEMS, Benchmark
from nupi.paper.runner import Claim, TargetRun, target

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = {"smoke": 1, "laptop": 5}
ABOUT = {
    "compas-tpr": "equal true positive rates on COMPAS, four groups: TFCO's numbers, fairlearn, and one model",
    "adult-tpr": "true positive rates on Adult within 0.05, four groups: TFCO's numbers, fairlearn, and one model",
    "crime-fpr": "equal false positive rates on Communities and Crime, on new rows: TFCO, fairlearn, and one model",
    "adult-parity": "parity of ten groups on Adult: fairlearn, and one model",
}


def benchmark(run: TargetRun, problem: Benchmark) -> list[Claim]:
    """Train with every seed, run fairlearn unless it is to be left out, and compare with what is published."""
    wanted = [
        {"problem": problem.name, "seed": seed, "constrained": constrained}
        for seed in range(SEEDS[run.scale])
        for constrained in (False, True)
    ]
    kept = run.out.parent / "runs"
    outcomes = jobs.run(training.train, wanted, kept, version=training.VERSION)
    found = jobs.values(run.progress(outcomes, f"training on {problem.name}", total=len(wanted)))
    free, ours = (
        [value for settings, value in sorted(found, key=_seed) if settings["constrained"] is kind]
        for kind in (False, True)
    )
    rivals: list[dict[str, Any]] = []
    if run.options.get("fairlearn", "yes") != "no":
        fit = jobs.run(reductions.reduction, [{"problem": problem.name}], kept, version=reductions.VERSION)
        rivals = [value for _, value in jobs.values(run.progress(fit, "running fairlearn", total=1))]
    rows = [
        {
            "model": each.name,
            f"{each.split} error": f"{each.error:.4f}",
            f"{each.split} violation": f"{each.violation:.4f}",
        }
        for each in problem.published
    ]
    rows += [
        {"model": f"fairlearn here: lottery of {rival['models']} logistic regressions", **_columns([rival])}
        for rival in rivals
    ]
    rows.append({"model": "here: unconstrained, last model", **_columns(free)})
    rows.append({"model": "here: nupi, one model (Best)", **_columns(ours)})
    run.table(
        f"{problem.name}: error and largest violation, {len(ours)} seeds",
        pd.DataFrame(rows, columns=["model", *_columns(ours)]).fillna(""),
    )
    run.results(_results(free, ours, rivals))
    return claims(problem, ours)


def claims(problem: Benchmark, ours: list[dict[str, Any]]) -> list[Claim]:
    """Whether one model of ours has no more error and no more violation than the goal, on average over the seeds."""
    goal = problem.goal
    found = []
    for what in ("error", "violation"):
        published = getattr(goal, what)
        here = [each[goal.split][what] for each in ours]
        reached = sum(round(value, 4) <= published for value in here)  # what is published has 4 digits
        found.append(
            Claim(
                f"one deterministic model has no more {what} on {goal.split} rows than {goal.name}",
                f"{published:.4f}",
                f"{_spread(here)}; in {reached} of {len(here)} seeds",
                round(mean(here), 4) <= published,
            )
        )
    return found


def _columns(several: list[dict[str, Any]]) -> dict[str, str]:
    return {
        f"{split} {what.replace('_', ' ')}": _spread([each[split][what] for each in several])
        for split in ("train", "test")
        for what in ("error", "violation", "mean_gap")
    }


def _spread(values: list[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _results(
    free: list[dict[str, Any]], ours: list[dict[str, Any]], rivals: list[dict[str, Any]]
) -> pd.DataFrame:
    rows = []
    for method, several in (("unconstrained", free), ("nupi", ours), ("fairlearn", rivals)):
        for seed, each in enumerate(several):
            for split in ("train", "test"):
                extra = {name: each.get(name, 0) for name in ("looked_at", "feasible")}
                rows.append({"method": method, "seed": seed, "split": split, **each[split], **extra})
    return pd.DataFrame(rows).round(6)


def _seed(found: tuple[dict[str, Any], Any]) -> int:
    seed: int = found[0]["seed"]
    return seed


def _register(problem: Benchmark) -> Callable[[TargetRun], list[Claim]]:
    @target(
        problem.name,
        paper="beside other libraries",
        about=ABOUT[problem.name],
        scales=("smoke", "laptop"),
        options=("fairlearn",),  # no: without it
    )
    def run_benchmark(run: TargetRun) -> list[Claim]:
        return benchmark(run, problem)

    return run_benchmark


for _problem in PROBLEMS.values():
    _register(_problem)
