"""Trajectories on the two-dimensional problem: the effect of kp, and of nu."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from nupi.paper import style
from nupi.paper.plane import LR, START, STEPS, Gains, Optima, Path, objective, optima, runs, violation
from nupi.paper.plane import PROBLEM as PLANE
from nupi.paper.runner import Claim, Run, target
from nupi.theory.spectrum import damping_ratio_of, eigenvalues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ASCENT = (Gains("GA, step 0.005", 0.005), Gains("GA, step 0.01", 0.01))
DAMPED = tuple(Gains(f"nuPI, kp = {kp:g}", 0.01, kp) for kp in (1.0, 3.0, 5.0))
SMOOTHED = tuple(Gains(f"nuPI, nu = {nu:g}", 0.01, 10.0, nu) for nu in (0.0, 0.5, 0.9, 0.95))
REACHED = 0.05  # the other minimum is 1.25 away
SMOKE_STEPS = 5_000


@target(
    "plane-kp",
    paper="Appendix, 2-D nonconvex problem, ablation of kp",
    about="gradient ascent and nuPI at kp 1, 3, 5 on a nonconvex problem in the plane",
    scales=("smoke", "paper"),
)
def plane_kp(run: Run) -> list[Claim]:
    """Gradient ascent misses the solution or oscillates into it; kp damps, monotonically."""
    known = optima()
    choices = [*ASCENT, *DAMPED]
    paths = runs(run, choices, _steps(run))
    small, large, *damped = paths
    colours = [*style.shades("ga", 3)[:2], *style.shades("nupi", 3)]
    run.figure(_draw(paths, choices, colours, known, shown=3_500))
    _record(run, choices, paths, known)

    nearest = [path.distance(known.unconstrained).min().item() for path in (small, large)]
    first = START.sub(known.unconstrained).norm().item()
    ends = [path.distance(known.constrained)[-1].item() for path in paths]
    overshoots = [path.overshoot for path in damped]
    changes = [path.sign_changes for path in damped]
    ratios = [_damping_at_the_optimum(c, known) for c in DAMPED]
    return [
        Claim(
            "the optimum by two independent solvers",
            "marked, without numbers",
            f"({known.constrained[0]:.4f}, {known.constrained[1]:.4f}), apart by {known.disagreement:.0e}",
            known.disagreement < 1e-6,
        ),
        Claim(
            "gradient ascent is first drawn toward the unconstrained optimum",
            "yes",
            f"distance to it {first:.2f} at the start, least {nearest[0]:.2f} and {nearest[1]:.2f}",
            max(nearest) < 0.7 * first,
        ),
        Claim(
            "gradient ascent at 0.005 does not reach the constrained optimum",
            "does not",
            f"ends {ends[0]:.2f} from it, {small.distance(known.local)[-1]:.1e} from the local minimum",
            ends[0] > 0.5,
        ),
        Claim(
            "gradient ascent at 0.01 reaches it, with oscillations",
            "does",
            f"ends {ends[1]:.4f} from it after {large.sign_changes} sign changes of the violation",
            ends[1] < REACHED and large.sign_changes >= 4,
        ),
        Claim(
            "nuPI reaches it at kp = 1, 3 and 5",
            "does",
            "ends " + ", ".join(f"{end:.0e}" for end in ends[2:]) + " from it",
            max(ends[2:]) < 1e-3,
        ),
        Claim(
            "kp = 1 is underdamped",
            "underdamped",
            f"overshoot {overshoots[0]:.1f}%, {changes[0]} sign changes; damping ratio {ratios[0]:.2f}",
            overshoots[0] > 10.0 and ratios[0] < 0.9,
        ),
        Claim(
            "kp = 3 is almost critical",
            "almost-critical",
            f"overshoot {overshoots[1]:.1f}%, {changes[1]} sign changes; damping ratio {ratios[1]:.3f}",
            overshoots[1] < 5.0 and 0.95 < ratios[1] < 1.05,
        ),
        Claim(
            "kp = 5 is overdamped",
            "overdamped",
            f"overshoot {overshoots[2]:.1f}%, {changes[2]} sign changes; damping ratio {ratios[2]:.2f}",
            changes[2] == 0 and ratios[2] > 1.0,
        ),
        Claim(
            "damping grows monotonically with kp",
            "monotonic",
            "overshoot "
            + " > ".join(f"{o:.1f}%" for o in (large.overshoot, *overshoots))
            + " for kp 0, 1, 3, 5",
            large.overshoot > overshoots[0] > overshoots[1] > overshoots[2]
            and large.sign_changes > changes[0] >= changes[1] >= changes[2],
        ),
    ]


@target(
    "plane-nu",
    paper="Appendix, 2-D nonconvex problem, ablation of nu",
    about="nuPI at kp = 10, ki = 0.01 under growing nu, on the same problem",
    scales=("smoke", "paper"),
)
def plane_nu(run: Run) -> list[Claim]:
    """A large nu acts as positive momentum does: the multiplier overshoots."""
    known = optima()
    paths = runs(run, SMOOTHED, _steps(run))
    run.figure(_draw(paths, SMOOTHED, style.shades("nupi", len(SMOOTHED)), known, shown=400))
    _record(run, SMOOTHED, paths, known)

    plain, strongest = paths[0], paths[-1]
    overshoots = [path.overshoot for path in paths]
    speeds = [path.settled_after for path in paths]
    growth = [path.multiplier[:40].abs().max().item() for path in paths]
    ends = [path.distance(known.constrained)[-1].item() for path in paths]
    return [
        Claim(
            "nu = 0.95 oscillates",
            "oscillates",
            f"{strongest.sign_changes} sign changes, overshoot {strongest.overshoot:.0f}%",
            strongest.sign_changes >= 2 and strongest.overshoot > 10.0,
        ),
        Claim(
            "nu = 0 does not",
            "a PI controller",
            f"{plain.sign_changes} sign changes, overshoot {plain.overshoot:.1f}%",
            plain.sign_changes == 0,
        ),
        Claim(
            "more nu, more overshoot, as with positive momentum",
            "qualitatively similar",
            "overshoot " + ", ".join(f"{o:.1f}%" for o in overshoots) + " for nu 0, 0.5, 0.9, 0.95",
            all(a <= b + 1e-9 for a, b in pairwise(overshoots)) and overshoots[-1] > overshoots[0],
        ),
        Claim(
            "nu > 0 shows no advantage here",
            "none",
            f"settles in {speeds[0]} steps at nu = 0, and in {', '.join(map(str, speeds[1:]))}",
            min(speeds[1:]) > 0.98 * speeds[0],
        ),
        Claim(
            "all of them reach the constrained optimum",
            "shown",
            f"within {max(ends):.0e} of it; multipliers peaked at {', '.join(f'{g:.0f}' for g in growth)}",
            max(ends) < REACHED,
        ),
    ]


def _steps(run: Run) -> int:
    return SMOKE_STEPS if run.scale == "smoke" else STEPS


def _damping_at_the_optimum(gains: Gains, known: Optima) -> float:
    """The damping ratio of the slowest pair of eigenvalues of the flow, linearised at the optimum."""
    multiplier = torch.tensor([known.multiplier], dtype=torch.float64)
    phi, slopes = PLANE.curvature(known.constrained, multiplier), PLANE.slopes(known.constrained)
    return damping_ratio_of(eigenvalues(phi, slopes, gains.ki / LR, gains.kp)[:2])


def _record(run: Run, choices: Sequence[Gains], paths: Sequence[Path], known: Optima) -> None:
    import pandas as pd

    frames = [
        pd.DataFrame(
            {
                "ki": gains.ki,
                "kp": gains.kp,
                "nu": gains.nu,
                "step": range(len(path.x)),
                "x1": path.x[:, 0],
                "x2": path.x[:, 1],
                "multiplier": path.multiplier,
                "violation": path.violation,
            }
        )[::10]
        for gains, path in zip(choices, paths, strict=True)
    ]
    run.results(pd.concat(frames))
    measured = [
        {
            "run": gains.label,
            "sign changes": path.sign_changes,
            "overshoot %": round(path.overshoot, 2),
            "settled after": path.settled_after,
            "final distance": path.distance(known.constrained)[-1].item(),
            "multiplier": path.multiplier[-1].item(),
        }
        for gains, path in zip(choices, paths, strict=True)
    ]
    run.table(f"The multiplier of the optimum is {known.multiplier:.4f}", pd.DataFrame(measured))


def _draw(
    paths: Sequence[Path], choices: Sequence[Gains], colours: Sequence[str], known: Optima, shown: int
) -> Figure:
    fig = style.figure(9.0, 4.4)
    grid = fig.add_gridspec(2, 2, width_ratios=(1.15, 1.0))
    plane = fig.add_subplot(grid[:, 0])
    above, below = fig.add_subplot(grid[0, 1]), fig.add_subplot(grid[1, 1])
    _draw_levels(plane)
    for gains, path, colour in zip(choices, paths, colours, strict=True):
        plane.plot(*path.x.T, color=colour, linewidth=1.2, label=_tex(gains.label), zorder=3)
        above.plot(path.multiplier[:shown], color=colour, linewidth=1.2)
        below.plot(path.violation[:shown], color=colour, linewidth=1.2)
    _mark(plane, START, "o", "white", "start")
    _mark(plane, known.unconstrained, "*", "0.75", "unconstrained optimum")
    _mark(plane, known.local, "X", "white", "local constrained optimum")
    _mark(plane, known.constrained, "*", style.OPTIMUM, "constrained optimum")
    above.axhline(known.multiplier, color=style.OPTIMUM, linestyle=":", linewidth=1)
    above.annotate(
        "multiplier of the optimum",
        (1.0, known.multiplier),
        xycoords=("axes fraction", "data"),
        xytext=(0, -24),
        textcoords="offset points",
        fontsize=7,
        ha="right",
        arrowprops={"arrowstyle": "-", "linewidth": 0.5},
    )
    below.axhline(0.0, color=style.OPTIMUM, linestyle=":", linewidth=1)
    above.set_ylabel(r"multiplier $\mu$")
    below.set_ylabel(r"violation $h(x) - 2$")
    below.set_xlabel("step")
    above.tick_params(labelbottom=False)
    fig.legend(*plane.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return fig


def _tex(label: str) -> str:
    return label.replace("nuPI", r"$\nu$PI").replace("nu =", r"$\nu$ =").replace("kp", r"$\kappa_p$")


def _draw_levels(axes: Axes) -> None:
    """Level sets: of the objective solid, of the constraint dashed, and the feasible curve thick."""
    x1, x2 = torch.linspace(-1.15, 1.75, 300), torch.linspace(-1.3, 1.65, 300)
    points = torch.stack(torch.meshgrid(x1, x2, indexing="xy"), dim=-1).double()
    f, h = objective(points), violation(points)
    axes.contour(x1, x2, f, levels=[1.5, 3, 5, 8, 12, 18, 27, 40, 60], colors="0.8", linewidths=0.7, zorder=1)
    axes.contour(x1, x2, h, levels=[-3, -2, -1, 1, 2, 4], colors="0.7", linewidths=0.6, linestyles="dashed")
    axes.contour(x1, x2, h, levels=[0.0], colors="0.25", linewidths=1.4, linestyles="dashed", zorder=2)
    axes.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-1.15, 1.75), ylim=(-1.3, 1.65))
    axes.grid(visible=False)


def _mark(axes: Axes, point: torch.Tensor, marker: str, colour: str, label: str) -> None:
    size = 13 if marker == "*" else 7
    axes.plot(
        *point.tolist(), marker, color=colour, markeredgecolor="black", markersize=size, label=label, zorder=5
    )
