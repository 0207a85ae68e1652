"""Target `self-tuned-sensitivity`: every constant of the rule, and T, halved and doubled, on tasks nobody tuned on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from nupi.paper import jobs, style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.self_tuned.constants import constant
from nupi.paper.self_tuned.runs import VERSION, solve
from nupi.paper.self_tuned.tables import MET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONSTANTS = (
    "SPEED",
    "FAST_POLE",
    "SHAKING",
    "SMOOTHING",
    "PATIENCE",
    "URGENCY",
    "BEYOND",
    "LEAP",
    "PROGRESS",
    "ANSWER",
    "PROVEN",
    "SOFT",
    "measuring.MEASUREMENTS",
    "measuring.LATER",
    "retuning.WATCHINGS",
    "retuning.WATCHINGS_PER_RETUNING",
)
"""By name: of the rule, or of the module that says when something is done."""
TASKS = ("tumours", "diabetes")
SEEDS = {"smoke": 1, "laptop": 1, "desk": 5}
NEAR_ONE = {
    "PROGRESS": (0.8, 0.95),
    "FAST_POLE": (0.35, 1.0),
}  # twice these would be no share, or no stable pole


@target(
    "self-tuned-sensitivity",
    paper="not in the paper",
    about="how much SelfTuned depends on its constants and on T: each halved and doubled",
    scales=("smoke", "laptop", "desk"),
)
def sensitivity(run: TargetRun) -> list[Claim]:
    """Change one constant at a time, and look at the violation and the loss at the end."""
    settings = [
        {"task": task, "seed": seed, **change}
        for task in TASKS
        for seed in range(SEEDS[run.scale])
        for change in _changes(few=run.scale == "smoke")
    ]
    outcomes = jobs.run(solve, settings, run.jobs, version=VERSION)
    found = jobs.values(run.progress(outcomes, "training", total=len(settings)))
    frame = pd.DataFrame([{**given, **value, "change": _label(given)} for given, value in found])
    frame = frame.drop(columns=["constants"], errors="ignore")
    run.results(frame)
    means = frame.pivot_table(index="change", columns="task", values=["violation", "loss"], sort=False)
    means = means.loc[sorted(means.index, key=lambda name: (name != "none", name))]
    shown = pd.DataFrame(
        {
            "change": list(means.index),
            **{
                task: [
                    f"{v:.2g}; {x:.2g}"
                    for v, x in zip(means["violation", task], means["loss", task], strict=True)
                ]
                for task in TASKS
            },
        }
    )
    run.table("violation; loss, by what was changed", shown)
    run.figure(_figure(means))
    missed = [str(name) for name in means.index if (means.loc[name, "violation"] > MET).any()]
    return [
        Claim(
            f"with any one constant or T halved or doubled, both tasks end within {MET:g} of their constraints",
            "goal: all",
            f"{len(means) - len(missed)} of {len(means)}"
            + (f"; not with {', '.join(missed)}" if missed else ""),
            not missed,
        )
    ]


def _changes(*, few: bool) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = [{"method": "SelfTuned"}]
    if few:
        return [*plain, {"method": "SelfTuned, 2T"}]
    for name in CONSTANTS:
        value = constant(name)
        plain += [
            {"method": "SelfTuned", "constants": {name: other}}
            for other in NEAR_ONE.get(name, (type(value)(value / 2), value * 2))
        ]
    return [*plain, {"method": "SelfTuned, T/2"}, {"method": "SelfTuned, 2T"}]


def _label(given: dict[str, Any]) -> str:
    for name, value in given.get("constants", {}).items():
        return f"{name.rpartition('.')[2]} = {value:g}"
    changed: str = given["method"].removeprefix("SelfTuned").removeprefix(", ")
    return changed or "none"


def _figure(means: pd.DataFrame) -> Figure:
    figure = style.figure(7.2, 0.17 * len(means) + 0.9)
    left, right = figure.subplots(1, 2, sharey=True)
    for task, marker in zip(TASKS, "os", strict=True):
        left.plot(means["violation", task], range(len(means)), marker, label=task, markersize=4)
        loss = means["loss", task]
        right.plot(loss / loss["none"], range(len(means)), marker, label=task, markersize=4)
    left.set_xlabel("violation")
    left.axvline(MET, color="0.6", linestyle=":")
    left.xaxis.set_major_locator(MaxNLocator(5))
    right.set_xlabel("loss, relative to no change")
    left.set_yticks(range(len(means)), [str(name) for name in means.index], fontsize=7)
    left.set_ylim(len(means) - 0.5, -0.5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
