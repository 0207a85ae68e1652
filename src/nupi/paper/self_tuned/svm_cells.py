"""Target `svm-cells`: one problem in seven disguises, and which dual optimizers still solve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nupi.paper import jobs, style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.self_tuned.quadratics import CELLS
from nupi.paper.self_tuned.runs import VERSION, follow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (
    "gradient ascent, tuned",
    "nuPI, tuned",
    "humancompatible nuPI",
    "humancompatible ALM",
    "omnisafe PID",
    "SelfTuned",
)
SOLVED = 1e-2  # the most for the worst violation of the last 500 steps, and for the distance to lambda*
SHORT = {"units x100": "x100", "units x0.01": "x0.01", "no momentum": "SGD"}  # columns fit a terminal
DRAWN = {"gradient ascent, tuned": "ga", "nuPI, tuned": "nupi", "SelfTuned": "self-tuned"}
PANELS = {
    "paper": "as in the paper",
    "units x100": "violations times 100",
    "units x0.01": "violations times 0.01",
}
EVERY = 10  # steps from one point of a path to the next
FLOOR = 1e-8


@target(
    "svm-cells",
    paper="not in the paper",
    about="the SVM in other units and with other optimizers: gains that were tuned, other libraries, SelfTuned",
    scales=("smoke", "paper"),
)
def svm_cells(run: TargetRun) -> list[Claim]:
    """Train every cell with every method, and see which end feasible."""
    cells = list(CELLS)[: 2 if run.scale == "smoke" else None]
    methods = METHODS[-2:] if run.scale == "smoke" else METHODS
    wanted = [{"name": cell, "method": method, "every": EVERY} for cell in cells for method in methods]
    outcomes = jobs.run(follow, wanted, run.jobs, version=VERSION)
    found = jobs.values(run.progress(outcomes, "training the SVM", total=len(wanted)))
    ends = {(each["method"], each["name"]): value for each, value in found}
    run.results(_results(ends))
    run.table(
        "The SVM in seven cells: worst violation over the last 500 of 5,000 steps",
        pd.DataFrame(
            [
                {
                    "method": method,
                    **{SHORT.get(cell, cell): _short(ends[method, cell]["violation"]) for cell in cells},
                    "solved": f"{_solved(ends, method)} of {len(cells)}",
                }
                for method in methods
            ]
        ),
    )
    panels = [cell for cell in PANELS if cell in cells]
    run.figure(_figure(ends, panels))
    ours = _solved(ends, "SelfTuned")
    most = max(_solved(ends, method) for method in methods if method != "SelfTuned")
    return [
        Claim(
            "SelfTuned ends with a violation and a distance to lambda* below 1e-2 in every cell",
            f"goal: {len(cells)} of {len(cells)}",
            f"{ours} of {len(cells)}; the best of the others {most} of {len(cells)}",
            ours == len(cells),
        )
    ]


def _solved(ends: dict[tuple[str, str], dict[str, Any]], method: str) -> int:
    return sum(
        max(value["violation"], value.get("lambda", 0.0)) <= SOLVED
        for (name, _), value in ends.items()
        if name == method
    )


def _results(ends: dict[tuple[str, str], dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"method": method, "cell": cell, "violation": value["violation"], "distance": value.get("lambda")}
            for (method, cell), value in ends.items()
        ]
    )


def _figure(ends: dict[tuple[str, str], dict[str, Any]], cells: list[str]) -> Figure:
    fig = style.figure(2.5 * len(cells) + 0.5, 2.6)
    axes = fig.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    for panel, cell in zip(axes, cells, strict=True):
        for method, key in DRAWN.items():
            path = ends.get((method, cell), {}).get("path")
            if not path:
                continue
            steps = range(0, EVERY * len(path), EVERY)
            width = 2.2 if method == "SelfTuned" else 1.0
            panel.plot(
                steps, [max(v, FLOOR) for v in path], color=style.colour(key), label=method, linewidth=width
            )
        panel.set(yscale="log", ylim=(FLOOR, 1e2), title=PANELS[cell], xlabel="step")
    axes[0].set_ylabel(r"distance to $\lambda^*$")
    axes[0].legend(loc="upper right")
    return fig


def _short(value: float) -> str:
    return "inf" if value >= 1e8 else "0" if value < FLOOR else f"{value:.1g}"
