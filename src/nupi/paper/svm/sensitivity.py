"""Target `svm-sensitivity`: the distance to lambda* against the step size, and over (ki, kp)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.svm.maps import colour_bar, draw_map
from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import (
    CONVERGED,
    MAP_KP,
    RUNAWAY,
    SENSITIVITY_KP,
    baselines,
    run_sweep,
    step_sizes,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    import nupi

NEAREST = 1e-9  # the foot of the distance panels


@target(
    "svm-sensitivity",
    paper="Section 5.1, sensitivity figure",
    about="which step sizes converge, for every method and kp; heat map over (ki, kp)",
    scales=("smoke", "paper"),
)
def sensitivity(run: TargetRun) -> list[Claim]:
    """One sweep over all methods, one over (kp, ki)."""
    kp = thinned(SENSITIVITY_KP, run.scale, (1.0, 10.0, 100.0))
    grid = [{"dual": ["nupi", "nupi-zero"], "kp": kp, "ki": step_sizes()}, *baselines(run.scale)]
    curves = frame_of(run_sweep(run, grid, "every method and step size"))
    chart = run_sweep(
        run,
        {"dual": ["nupi"], "kp": thinned(MAP_KP, run.scale, (-10.0, 0.0, 10.0, 50.0)), "ki": step_sizes()},
        "heat map over (ki, kp)",
    ).at(dual="nupi")
    mapped = frame_of(chart)
    run.results(pd.concat([curves.assign(part="curves"), mapped.assign(part="map")], ignore_index=True))
    run.table("SVM: step sizes that converge (distance below 0.01 after 5,000 steps)", counts(curves))
    run.figure(_figure(curves, chart))
    return _claims(curves, mapped)


def frame_of(found: nupi.Solution) -> pd.DataFrame:
    """Settings, distances and accuracies, with the step size of every method in one column."""
    problem = svm()
    train, held_out = problem.accuracy(found.x)
    frame = found.frame(
        distance=problem.distance(found.multipliers["inequality"]), train=train, validation=held_out
    )
    if "dual" not in frame:
        frame.insert(0, "dual", "nupi")
    frame["step_size"] = frame["ki"].fillna(frame["lr"]) if "lr" in frame else frame["ki"]
    for name in ("kp", "beta"):
        if name not in frame:
            frame[name] = float("nan")
    frame["converged"] = frame["distance"] < CONVERGED
    return frame


def counts(curves: pd.DataFrame) -> pd.DataFrame:
    """Per method and gain: how many step sizes converge, from where to where, and the best distance."""
    rows: list[dict[str, Any]] = []
    for _, part in curves.groupby(["dual", "kp", "beta"], dropna=False, sort=False):
        sizes = part.loc[part["converged"], "step_size"]
        method, kp, beta = part.iloc[0][["dual", "kp", "beta"]]
        gain = "" if pd.isna(kp) and pd.isna(beta) else f"beta {beta:g}" if pd.isna(kp) else f"kp {kp:g}"
        rows.append(
            {
                "method": method,
                "gain": gain,
                "converging": f"{len(sizes)} of {len(part)}",
                "from": f"{sizes.min():.2g}" if len(sizes) else "",
                "to": f"{sizes.max():.2g}" if len(sizes) else "",
                "best distance": part["distance"].min(),
            }
        )
    return pd.DataFrame(rows)


def _claims(curves: pd.DataFrame, mapped: pd.DataFrame) -> list[Claim]:
    controllers = curves[curves["dual"] == "nupi"]
    kicked = curves[(curves["dual"] == "nupi-zero") & curves["converged"]]
    rest = pd.concat([curves[~curves["dual"].isin(["nupi", "nupi-zero"])], mapped[mapped["kp"] <= 0]])
    best = rest.sort_values("distance").iloc[0]
    good = controllers[controllers["converged"]]
    kps = sorted(controllers["kp"].unique())
    sizes = [good.loc[good["kp"] == kp, "step_size"] for kp in kps]
    number = [len(part) for part in sizes]
    from_zero = " ".join(str(int((kicked["kp"] == kp).sum())) for kp in kps)
    far = mapped[(mapped["kp"] > 0) & ~(mapped["distance"] <= RUNAWAY)]
    lowest, highest = [float(part.min()) for part in sizes], [float(part.max()) for part in sizes]
    named = ", ".join(f"{kp:g}" for kp in kps)
    total = controllers["step_size"].nunique()
    return [
        Claim(
            "on the paper's grid nothing converges without kp >= 1",
            "none",
            f"{int(rest['converged'].sum())} of {len(rest)} settings; the nearest ({best['dual']}) ends "
            f"{best['distance']:.1e} away",
            not rest["converged"].any(),
        ),
        Claim(
            "with kp >= 1 some step sizes converge",
            "for every kp >= 1",
            f"{' '.join(map(str, number))} of {total} at kp = {named}; from the start zero {from_zero}",
            all(number),
        ),
        Claim(
            "from one kp to the next neither end of the range of converging ki falls; the upper end rises over all",
            "higher ki",
            f"from {' '.join(f'{size:.2g}' for size in lowest)} "
            f"to {' '.join(f'{size:.2g}' for size in highest)} at kp = {named}",
            all(number) and _grows(lowest) and _grows(highest) and highest[-1] > highest[0],
        ),
        Claim(
            "at every kp above 1 more step sizes of the grid converge than at kp = 1",
            "broader range",
            f"{' '.join(map(str, number))} of {total} at kp = {named}; "
            + (
                "growing all the way"
                if _grows(number)
                else f"widest at kp = {kps[number.index(max(number))]:g}"
            ),
            all(count > number[0] for count in number[1:]),
        ),
        Claim(
            f"with kp > 0 no setting of the heat map ends farther than {RUNAWAY:g} from lambda*",
            "such cells are drawn grey; how many there are is not said",
            f"{len(far)} of {int((mapped['kp'] > 0).sum())} settings",
            far.empty,
        ),
    ]


def _grows(values: list[Any]) -> bool:
    return all(after >= before for before, after in itertools.pairwise(values))


def _figure(curves: pd.DataFrame, chart: nupi.Solution) -> Figure:
    fig = style.figure(11.0, 4.2)
    left, middle, right = fig.subplots(1, 3, gridspec_kw={"width_ratios": [1, 1, 1.2]})
    for method in ("polyak", "nesterov", "restart", "adam", "ga"):
        part = curves[curves["dual"] == method]
        many = method in ("polyak", "nesterov")
        for i, (_, line) in enumerate(part.groupby("beta", dropna=False)):
            _draw(
                left,
                line,
                color=style.colour(method),
                linewidth=0.8 if many else 1.8,
                alpha=0.6 if many else 1.0,
                label=(style.LABELS[method] + (r", every $\beta$" if many else "")) if i == 0 else None,
            )
    left.set_title("baselines")
    left.set_xlabel(r"step size $\alpha$")
    left.set_ylabel(r"distance to $\lambda^*$ after 5,000 steps")
    controllers = curves[curves["dual"] == "nupi"]
    kps = sorted(controllers["kp"].unique())
    for kp, shade in zip(kps, style.shades("nupi", len(kps)), strict=True):
        line = controllers[controllers["kp"] == kp]
        _draw(middle, line, color=shade, linewidth=0.7, alpha=0.35)
        near = line["converged"].to_numpy()
        rim = near | np.append(near[1:], False) | np.append(False, near[:-1])  # and a neighbour on each side
        _draw(middle, line[rim], color=shade, linewidth=1.8, label=rf"$\kappa_p$ = {kp:g}")
    middle.set_title(rf"{style.LABELS['nupi']}, $\nu$ = 0, by $\kappa_p$")
    middle.set_xlabel(r"$\kappa_i$")
    for panel, columns in ((left, 2), (middle, 4)):
        panel.set_ylim(NEAREST, 4 * RUNAWAY)
        panel.axhspan(NEAREST, CONVERGED, color=style.FEASIBLE, zorder=0, linewidth=0)
        panel.text(0.02, 0.03, f"converged: below {CONVERGED:g}", transform=panel.transAxes, fontsize=8)
        panel.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=7, columnspacing=1.0
        )
    mesh = draw_map(right, chart)
    right.set_title(rf"{style.LABELS['nupi']}, $\nu$ = 0, over $\kappa_i$ and $\kappa_p$")
    right.set_ylabel(r"$\kappa_p$")
    colour_bar(fig, mesh, [right])
    return fig


def _draw(panel: Axes, line: pd.DataFrame, **how: Any) -> None:
    """Distance against step size; what lies outside the panel is drawn on its rim."""
    panel.loglog(line["step_size"], line["distance"].clip(NEAREST, RUNAWAY), **how)
