"""Target `svm-dynamics`: multiplier 64 under every method, each at its best step size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.monitor.replay import Played
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.svm.problem import SHOWN, svm
from nupi.paper.svm.runs import CONVERGED, SENSITIVITY_KP, STEPS, baselines, run_sweep, step_sizes, thinned

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    import nupi

PLOTTED = 3_000
TAIL = 500  # the last steps, over which a multiplier's swing is measured
TOP = 0.75  # of the panels; where a multiplier leaves them its peak is written down
METHODS = ("nupi", "ga", "restart", "polyak", "polyak-negative", "nesterov", "adam")
KICKED = "nupi-zero"  # for comparison, in the table alone
DEAD_BAND = 1e-3  # closer to lambda* than this, a multiplier has no side


@target(
    "svm-dynamics",
    paper="Figure 1",
    about="a multiplier of the SVM under every dual method, each at its best step size",
    scales=("smoke", "paper"),
)
def dynamics(run: TargetRun) -> list[Claim]:
    """Search the grids, run the best setting of each method again with its history, and compare."""
    best = _best_settings(run)
    grid = [{name: [value] for name, value in best[method].items()} for method in (*METHODS, KICKED)]
    found = run_sweep(run, grid, "best settings again", history=["multipliers", "violations"])
    table = _table(found, best)
    run.results(_history(found))
    run.table("SVM: every method at its best step size, after 5,000 steps", _shown(table))
    run.figure(_figure(found, best))
    run.report(_played(found, best))
    return _claims(table)


def _best_settings(run: TargetRun) -> dict[str, dict[str, object]]:
    """The setting of each method that ends nearest to lambda*."""
    problem = svm()
    kp = thinned(SENSITIVITY_KP, run.scale, (5.0, 50.0))
    grid = [{"dual": ["nupi", KICKED], "kp": kp, "ki": step_sizes()}, *baselines(run.scale)]
    found = run_sweep(run, grid, "search for the best step sizes")
    distance = problem.distance(found.multipliers["inequality"])
    members: dict[str, list[int]] = {method: [] for method in (*METHODS, KICKED)}
    for i, setting in enumerate(found.settings):
        negative = setting["dual"] == "polyak" and setting["beta"] < 0
        members["polyak-negative" if negative else setting["dual"]].append(i)
    best = {method: min(rows, key=lambda i: float(distance[i])) for method, rows in members.items()}
    for method in ("nupi", KICKED):
        tied = [i for i in members[method] if distance[i] < 1e-9]
        best[method] = _soonest(run, found, tied, best[method])
    return {method: dict(found.settings[row]) for method, row in best.items()}


def _soonest(run: TargetRun, found: nupi.Solution, tied: list[int], fallback: int) -> int:
    """Of settings that all reach lambda* to rounding, the one that was near it for good the soonest."""
    if not tied:
        return fallback
    every = 10
    grid = [{name: [value] for name, value in found.settings[i].items()} for i in tied]
    again = run_sweep(run, grid, "which of them is soonest", history=["multipliers"], every=every)
    recorded = again.history["multipliers"]
    assert isinstance(recorded, dict)
    far = svm().distance(recorded["inequality"]) >= CONVERGED
    last_far = torch.where(far, torch.arange(far.shape[1]), -1).amax(dim=1)
    return tied[int(last_far.argmin())]


def _series(found: nupi.Solution, name: str) -> torch.Tensor:
    recorded = found.history[name]
    assert isinstance(recorded, dict)
    return recorded["inequality"]


def _played(found: nupi.Solution, best: dict[str, dict[str, object]]) -> dict[str, Played]:
    """The runs of the figure, for the report; a method that has ki is nuPI."""
    every = zip(METHODS, _series(found, "violations"), _series(found, "multipliers"), strict=False)
    return {
        method: Played(
            violation,
            multiplier,
            dual="NuPI" if "ki" in best[method] else method,
            gains={name: value for name, value in best[method].items() if isinstance(value, float)},
        )
        for method, violation, multiplier in every
    }


def _table(found: nupi.Solution, best: dict[str, dict[str, object]]) -> pd.DataFrame:
    import pandas as pd

    problem = svm()
    multipliers, violations = _series(found, "multipliers"), _series(found, "violations")
    distance = problem.distance(multipliers[:, -1])
    tail = multipliers[:, -TAIL:, SHOWN]
    train, held_out = problem.accuracy(found.x)
    return pd.DataFrame(
        {
            "method": (*METHODS, KICKED),
            "gains": [_gains(best[method]) for method in (*METHODS, KICKED)],
            "distance": distance.tolist(),
            "swing": (tail.amax(1) - tail.amin(1)).tolist(),
            "crossings": _crossings(multipliers[:, :, SHOWN] - problem.multipliers[SHOWN]),
            "violation": violations[:, -1].amax(-1).clamp(min=0).tolist(),
            "train %": (100 * train).tolist(),
            "validation %": (100 * held_out).tolist(),
            "diverged": [bool(bad) for bad in ~torch.isfinite(distance)],
        }
    )


def _crossings(gaps: torch.Tensor) -> list[int]:
    """How often each multiplier (a row) goes past lambda*, from one side of the dead band to the other."""
    sides = [gap[gap.abs() > DEAD_BAND].sign() for gap in gaps]
    return [int((side[1:] != side[:-1]).sum()) for side in sides]


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as it is printed: narrow enough for a terminal of 80 columns."""
    shown = table[["method", "gains"]].copy()
    for name in ("distance", "swing", "violation"):
        shown[name] = [f"{value:.1e}" for value in table[name]]
    shown["crossings"] = table["crossings"]
    pairs = zip(table["train %"], table["validation %"], strict=True)
    shown["accuracy %"] = [f"{train:.0f}, {held_out:.0f}" for train, held_out in pairs]
    return shown


def _gains(setting: dict[str, object], symbols: dict[str, str] | None = None) -> str:
    """The gains of a setting in words, or in symbols for a figure."""
    words = symbols or {"lr": "alpha"}
    shown = {words.get(name, name): value for name, value in setting.items() if isinstance(value, float)}
    return ", ".join(f"{name} {'= ' if symbols else ''}{value:.2g}" for name, value in shown.items())


def _history(found: nupi.Solution) -> pd.DataFrame:
    import pandas as pd

    multipliers = _series(found, "multipliers")
    distance = svm().distance(multipliers)
    steps = range(0, STEPS, 10)
    return pd.DataFrame(
        [
            {
                "method": method,
                "step": step,
                f"multiplier {SHOWN}": float(multipliers[row, step, SHOWN]),
                "distance": float(distance[row, step]),
            }
            for row, method in enumerate(METHODS)
            for step in steps
        ]
    )


def _claims(table: pd.DataFrame) -> list[Claim]:
    nupi_row, rest = table.iloc[0], table.iloc[1 : len(METHODS)]
    nearest = rest.sort_values("distance").iloc[0]
    ratio = nearest["distance"] / nupi_row["distance"]
    crossings = dict(zip(rest["method"], rest["crossings"], strict=True))
    alive = table[~table["diverged"]]
    perfect = alive[(alive["train %"] == 100) & (alive["validation %"] == 100)]
    return [
        Claim(
            "nuPI reaches the optimal multipliers and rests there",
            "converges to lambda*",
            f"distance {nupi_row['distance']:.1e} after {STEPS:,} steps ({nupi_row['gains']}); swing of "
            f"multiplier {SHOWN} over the last {TAIL} steps {nupi_row['swing']:.1e}",
            nupi_row["distance"] < CONVERGED and nupi_row["swing"] < CONVERGED,
        ),
        Claim(
            f"no baseline does: at its best step size each ends more than {CONVERGED:g} away",
            "none converges",
            f"distances {rest['distance'].min():.1e} ({nearest['method']}) to {rest['distance'].max():.1e}; "
            f"{int((rest['swing'] > CONVERGED).sum())} of {len(rest)} still swing by more than "
            f"{CONVERGED:g} over the last {TAIL} steps",
            not (rest["distance"] <= CONVERGED).any(),
        ),
        Claim(
            "the nearest baseline is more than 1,000 times as far from lambda* as nuPI",
            "nuPI alone converges",
            f"{ratio:.0e} times ({nearest['method']})",
            ratio > 1e3,
        ),
        Claim(
            f"multiplier {SHOWN} oscillates about lambda* in all baselines: it crosses it more than once",
            "oscillations in all of the baselines",
            ", ".join(f"{method} {count}" for method, count in crossings.items()) + " crossings",
            min(crossings.values()) > 1,
        ),
        Claim(
            "nuPI alone ends without constraint violation",
            "the only one at zero",
            f"largest violation {nupi_row['violation']:.1e}; baselines {rest['violation'].min():.1e} "
            f"to {rest['violation'].max():.1e}",
            nupi_row["violation"] < 1e-6 < rest["violation"].min(),
        ),
        Claim(
            "every method that does not diverge separates training and validation data perfectly",
            "100% and 100%",
            f"{len(perfect)} of {len(alive)} methods at 100% and 100%",
            len(perfect) == len(alive) > 0,
        ),
    ]


SYMBOLS = {"lr": r"$\alpha$", "beta": r"$\beta$", "ki": r"$\kappa_i$", "kp": r"$\kappa_p$"}


def _figure(found: nupi.Solution, best: dict[str, dict[str, object]]) -> Figure:
    """A panel per method with multiplier 64, and one with the distances of all of them."""
    fig = style.figure(10.0, 5.0)
    axes = fig.subplots(2, 4, sharex=True)
    problem = svm()
    multipliers = _series(found, "multipliers")
    optimum = float(problem.multipliers[SHOWN])
    steps = torch.arange(PLOTTED)
    panels = axes.flat
    for row, method in enumerate(METHODS):
        panel, line = panels[row], multipliers[row, :PLOTTED, SHOWN]
        panel.axhline(optimum, color=style.OPTIMUM, linestyle="--", linewidth=1.0, zorder=3)
        panel.plot(steps, line, color=style.colour(method), linewidth=1.4)
        panel.set_ylim(-0.02, TOP)
        panel.set_title(f"{style.LABELS[method]}\n{_gains(best[method], SYMBOLS)}", fontsize=9)
        if float(line.max()) > TOP:
            text = f"peak {float(line.max()):.2g} at step {int(line.argmax())}"
            panel.annotate(text, (0.06, 0.93), xycoords="axes fraction", fontsize=8)
        if row % 4 == 0:
            panel.set_ylabel(f"multiplier {SHOWN}")
        else:
            panel.tick_params(labelleft=False)
    panels[0].annotate(
        rf"$\lambda^*$ = {optimum:.4f}",
        (PLOTTED, optimum),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
    )
    last = panels[len(METHODS)]
    distance = problem.distance(multipliers)[:, :PLOTTED]
    for row in reversed(range(len(METHODS))):
        last.semilogy(steps, distance[row], color=style.colour(METHODS[row]), linewidth=1.2)
    last.axhspan(1e-9, CONVERGED, color=style.FEASIBLE, zorder=0, linewidth=0)
    last.text(0.03, 0.05, f"converged: below {CONVERGED:g}", transform=last.transAxes, fontsize=8)
    last.set_ylim(1e-8, 20)
    last.set_title(
        "every method, in the colours above\n" + r"distance $\|\lambda_t - \lambda^*\|$", fontsize=9
    )
    for panel in axes[1]:
        panel.set_xlabel("step")
    return fig
