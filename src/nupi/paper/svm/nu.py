"""Target `svm-nu`: heat maps for three values of nu, with the momentum methods on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.svm.maps import colour_bar, draw_map
from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import CONVERGED, MAP_KP, NUPI, run_sweep, step_sizes, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUS = (-0.5, 0.0, 0.9)
MOMENTA = {"polyak": 0.0, "nesterov": 1.0}
MARKERS = {"polyak": "o", "nesterov": "^"}
TOGETHER = 300  # steps over which momentum and its nuPI counterpart are compared


@target(
    "svm-nu",
    paper="Appendix, heat maps for nu",
    about="which (ki, kp) converge for nu -0.5, 0, 0.9, and where momentum lies among them",
    scales=("smoke", "paper"),
)
def smoothing(run: TargetRun) -> list[Claim]:
    """One sweep over (nu, kp, ki); one over the momentum methods that Theorem 1 puts on those maps."""
    problem = svm()
    kp = thinned(MAP_KP, run.scale, (-10.0, 0.0, 10.0, 20.0, 40.0, 60.0))
    grid = {"nu": NUS, "kp": kp, "ki": step_sizes()}
    found = run_sweep(run, grid, "heat maps for three nu", dual=NUPI)
    momentum = run_sweep(run, {"dual": list(MOMENTA), "beta": NUS, "lr": step_sizes()}, "momentum methods")
    points = _points(momentum)
    mapped = found.frame(distance=problem.distance(found.multipliers["inequality"]))
    run.results(pd.concat([mapped.assign(dual="nupi"), points], ignore_index=True))
    table = _table(mapped, points)
    run.table("SVM: settings that converge (distance below 0.01 after 5,000 steps)", table)
    run.figure(_figure(found, points))
    return _claims(table, points, _theorem_gap())


def _points(momentum: nupi.Solution) -> pd.DataFrame:
    """The momentum runs, with the nuPI gains that Theorem 1 gives them."""
    frame = momentum.frame(distance=svm().distance(momentum.multipliers["inequality"]))
    gains = [nupi.as_nupi(s["lr"], s["beta"], MOMENTA[s["dual"]]) for s in momentum.settings]
    return frame.join(pd.DataFrame(gains))


def _theorem_gap() -> float:
    """The largest relative gap between momentum's multipliers and those of nuPI with Theorem 1's gains."""
    moderate = [size for size in step_sizes() if 1e-4 < size < 1e-2]  # larger ones amplify rounding
    options: dict[str, Any] = {"steps": TOGETHER}
    grid = {"dual": list(MOMENTA), "beta": NUS, "lr": moderate}
    momentum = run_sweep(None, grid, **options)
    twins = [
        {name: [value] for name, value in nupi.as_nupi(s["lr"], s["beta"], MOMENTA[s["dual"]]).items()}
        | {"init": ["ema"], "form": ["velocity"]}
        for s in momentum.settings
    ]
    controllers = run_sweep(None, twins, dual=nupi.NuPI, **options).multipliers["inequality"]
    gap = (controllers - momentum.multipliers["inequality"].reshape_as(controllers)).abs().amax(-1)
    return float((gap / controllers.abs().amax(-1)).max())


def _table(mapped: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for nu in NUS:
        part, momentum = mapped[mapped["nu"] == nu], points[points["beta"] == nu]
        rows.append(
            {
                "nu": nu,
                "settings": len(part),
                "converging": int((part["distance"] < CONVERGED).sum()),
                "smallest distance": part["distance"].min(),
                "momentum points": len(momentum),
                "of them converging": int((momentum["distance"] < CONVERGED).sum()),
                "their smallest distance": momentum["distance"].min(),
            }
        )
    return pd.DataFrame(rows)


def _claims(table: pd.DataFrame, points: pd.DataFrame, gap: float) -> list[Claim]:
    count = dict(zip(table["nu"], table["converging"], strict=True))
    shown = ", ".join(f"{number} at nu = {nu:g}" for nu, number in count.items())
    near = points.sort_values("distance").iloc[0]
    return [
        Claim(
            "nu = 0 has the most converging settings",
            "most at nu = 0, some at -0.5",
            f"{shown} of {int(table['settings'].iloc[0])} each",
            count[0.0] > count[-0.5] > 0 and count[0.0] > count[0.9],
        ),
        Claim(
            "nu = 0.9 has none",
            "0",
            f"{count[0.9]}; the nearest ends {float(table['smallest distance'].iloc[2]):.1e} away",
            count[0.9] == 0,
        ),
        Claim(
            "no momentum point converges",
            "0",
            f"{int((points['distance'] < CONVERGED).sum())} of {len(points)}; the nearest "
            f"({near['dual']}, beta {near['beta']:g}) ends {near['distance']:.1e} away",
            bool((points["distance"] >= CONVERGED).all()),
        ),
        Claim(
            "Theorem 1: nuPI with these gains runs the same multipliers as momentum",
            "equal",
            f"largest relative gap {gap:.1e} over {TOGETHER} steps",
            gap < 1e-9,
        ),
    ]


def _figure(found: nupi.Solution, points: pd.DataFrame) -> Figure:
    fig = style.figure(11.0, 3.9)
    panels = fig.subplots(1, 3, sharey=True)
    for panel, nu in zip(panels, NUS, strict=True):
        mesh = draw_map(panel, found.at(nu=nu))
        limits = panel.get_xlim(), panel.get_ylim()
        for method, marker in MARKERS.items():
            part = points[(points["dual"] == method) & (points["beta"] == nu)]
            panel.plot(
                part["ki"],
                part["kp"],
                marker=marker,
                linestyle="none",
                markersize=5 if method == "polyak" else 3.5,
                color=style.colour(method),
                markeredgecolor="black",
                markeredgewidth=0.5,
                label=rf"{style.LABELS[method]}($\alpha$, $\beta$ = $\nu$)",
                zorder=4,
            )
        panel.set_xlim(*limits[0])
        panel.set_ylim(*limits[1])
        converging = int((svm().distance(found.at(nu=nu).multipliers["inequality"]) < CONVERGED).sum())
        panel.set_title(rf"$\nu$ = {nu:g}: {converging} converge")
    panels[0].set_ylabel(r"$\kappa_p$")
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=2)
    colour_bar(fig, mesh, list(panels))
    return fig
