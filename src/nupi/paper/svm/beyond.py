"""Target `svm-beyond`: what the paper leaves out. Every initial condition, both forms, small kp, and PID.

Step sizes are five times as dense as the paper's, so that ranges can be read in decades. Two measures of
convergence are given: the paper's distance below 1e-2, and one below 1e-6. They differ for large kp in the
positional form, where the proportional term alone, like a penalty, already brings the multipliers to within
about 1 / kp of lambda*, however small ki is; only the integral brings them the rest of the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import CONVERGED, SENSITIVITY_KP, run_sweep, step_sizes, thinned
from nupi.rule import FORMS, INITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = 1e-6
SMALL_KP = (0.1, 0.2, 0.5)  # below the paper's smallest
KD = (1.0, 10.0)
WHOLE = 6.0  # decades: about all that the step sizes span
LOOKS = {  # line width, dashes, marker
    "zero": (1.6, "-", ""),
    "error": (2.2, "--", ""),
    "ema": (3.0, ":", ""),
    "bumpless": (1.2, "-", "o"),
}


@target(
    "svm-beyond",
    paper="not in the paper",
    about="which initial condition, form or PID gain converges for the widest range of ki",
    scales=("smoke", "paper"),
)
def beyond(run: TargetRun) -> list[Claim]:
    """One sweep over forms, initial conditions, kp and ki; one over PID's gains."""
    finer = 1 if run.scale == "smoke" else 5
    kp = thinned((*SMALL_KP, *SENSITIVITY_KP), run.scale, (0.5, 1.0, 10.0, 100.0))
    sizes = step_sizes(finer)
    controllers = run_sweep(
        run,
        {"form": FORMS, "init": INITS, "kp": kp, "ki": sizes},
        "forms and initial conditions",
        dual=nupi.NuPI,
    )
    pid = run_sweep(run, {"kd": KD, "kp": kp, "ki": sizes}, "PID", dual=nupi.PID)
    frame = pd.concat([_frame(controllers), _frame(pid)], ignore_index=True)
    run.results(frame)
    spacing = 6.5 / (len(sizes) - 1)
    ranges = _ranges(frame, spacing)
    run.table(
        "SVM: the range of ki that converges, in decades, by kp (distance below 0.01)", _wide(ranges, "paper")
    )
    run.table("SVM: the same for a distance below 1e-6", _wide(ranges, "exact"))
    run.figure(_figure(ranges))
    return _claims(ranges, frame)


def _frame(found: nupi.Solution) -> pd.DataFrame:
    frame = found.frame(distance=svm().distance(found.multipliers["inequality"]))
    if "kd" in frame:
        return frame.assign(choice=[f"PID, kd {kd:g}" for kd in frame["kd"]])
    return frame.assign(
        choice=[f"{form}, {init}" for form, init in zip(frame["form"], frame["init"], strict=True)]
    )


def _ranges(frame: pd.DataFrame, spacing: float) -> pd.DataFrame:
    """Per choice and kp, how many decades of ki converge by either measure."""
    rows: list[dict[str, Any]] = []
    for _, part in frame.groupby(["choice", "kp"], sort=False):
        choice, kp = part.iloc[0][["choice", "kp"]]
        rows.append(
            {
                "choice": choice,
                "kp": float(kp),
                "paper": spacing * int((part["distance"] < CONVERGED).sum()),
                "exact": spacing * int((part["distance"] < EXACT).sum()),
            }
        )
    return pd.DataFrame(rows)


def _wide(ranges: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A row per choice, a column per kp, and the total, widest first."""
    wide = ranges.pivot_table(index="choice", columns="kp", values=measure, sort=False)
    wide.columns = [f"{kp:g}" for kp in wide.columns]
    wide["sum"] = wide.sum(axis=1)
    ordered = wide.sort_values("sum", ascending=False)
    return ordered.map(lambda decades: f"{decades:.1f}").reset_index()


def _claims(ranges: pd.DataFrame, frame: pd.DataFrame) -> list[Claim]:
    by_kp = {
        measure: ranges.pivot_table(index="choice", columns="kp", values=measure, sort=False)
        for measure in ("paper", "exact")
    }
    totals = {measure: table.sum(axis=1) for measure, table in by_kp.items()}
    positional = [f"positional, {init}" for init in INITS]
    velocity = [f"velocity, {init}" for init in INITS]
    gain = {
        measure: [totals[measure][p] - totals[measure][v] for p, v in zip(positional, velocity, strict=True)]
        for measure in totals
    }
    small = frame[(frame["choice"] == "velocity, bumpless") & (frame["kp"] < 1)]
    good = small[small["distance"] < CONVERGED]
    others = [choice for choice in velocity if choice != "velocity, bumpless"]
    inits = totals["exact"][velocity]
    first = {measure: _first(total) for measure, total in totals.items()}
    fastened = {measure: total[velocity].max() for measure, total in totals.items()}
    return [
        Claim(
            "of all choices the widest is one that keeps its integral apart: positional nuPI, or PID",
            "not in the paper",
            f"{first['paper']}; for a distance below {EXACT:g} {first['exact']}; the best velocity form "
            f"{fastened['paper']:.1f} and {fastened['exact']:.1f} decades over all kp",
            all(total.max() > fastened[measure] for measure, total in totals.items()),
        ),
        Claim(
            "the positional form converges for a wider range of ki than the velocity form, whatever the start",
            "not in the paper",
            f"by {min(gain['paper']):.1f} to {max(gain['paper']):.1f} decades over all kp "
            f"({min(gain['exact']):.1f} to {max(gain['exact']):.1f} for a distance below {EXACT:g})",
            min(gain["paper"]) > 0 and min(gain["exact"]) > 0,
        ),
        Claim(
            "in the velocity form the bumpless start converges most widely",
            "not in the paper",
            f"{inits['velocity, bumpless']:.1f} decades over all kp; the others "
            + ", ".join(f"{inits[choice]:.1f}" for choice in others)
            + f" (distance below {EXACT:g})",
            all(inits["velocity, bumpless"] > inits[choice] for choice in others),
        ),
        Claim(
            "a kp below 1 is enough to converge",
            "kp of at least 1 needed",
            f"{len(good)} settings with kp from {good['kp'].min():g} to {good['kp'].max():g}"
            if len(good)
            else "none",
            len(good) > 0,
        ),
    ]


def _first(total: pd.Series[float]) -> str:
    """The choice with the most decades, all that share them, and the best of the rest."""
    ordered = total.sort_values(ascending=False)
    near = ordered >= ordered.iloc[0] - 1e-9
    words = f"{' = '.join(map(str, ordered[near].index))} with {ordered.iloc[0]:.1f} decades"
    rest = ordered[~near]
    return f"{words}, then {rest.index[0]} with {rest.iloc[0]:.1f}" if len(rest) else words


def _figure(ranges: pd.DataFrame) -> Figure:
    """Decades of converging ki against kp, by the paper's measure and by a strict one."""
    fig = style.figure(9.5, 3.9)
    panels = fig.subplots(1, 2)
    kps = sorted(ranges["kp"].unique())
    titles = {"paper": f"distance below {CONVERGED:g}", "exact": "distance below $10^{-6}$"}
    for panel, (measure, title) in zip(panels, titles.items(), strict=True):
        for choice, part in ranges.groupby("choice", sort=False):
            panel.plot(range(len(kps)), part[measure], label=str(choice), **_look(str(choice)))
        panel.set_xticks(range(len(kps)), [f"{kp:g}" for kp in kps])
        panel.set_xlabel(r"$\kappa_p$")
        panel.set_title(title)
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel(r"decades of $\kappa_i$ that converge")
    widest = ranges["paper"].max()
    if widest > WHOLE:
        text = "the proportional term alone\nis this near, at any $\\kappa_i$"
        panels[0].annotate(text, (len(kps) - 1.5, widest), ha="right", va="top", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside right center")
    return fig


def _look(choice: str) -> dict[str, Any]:
    """Colour by controller and form, dashes by initial condition; choices that coincide stay visible."""
    form, _, detail = choice.partition(", ")
    if form == "PID":
        first = detail == f"kd {KD[0]:g}"
        colour = style.colour("pid")
        return {"color": colour, "linewidth": 4.0, "alpha": 0.3 if first else 0.6, "zorder": 1}
    shades: dict[str, str] = dict(zip(FORMS, style.shades("nupi", len(FORMS)), strict=True))
    width, dashes, marker = LOOKS[detail]
    return {
        "color": shades[form],
        "linewidth": width,
        "linestyle": dashes,
        "marker": marker,
        "markersize": 5,
    }
