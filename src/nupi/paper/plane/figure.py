"""How the runs on the two-dimensional problem are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.paper import style
from nupi.paper.plane.problem import START, Gains, Optima, Path, objective, violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AREA = (-2.0, 2.0)  # of starts, in both directions
# Which step sizes of gradient ascent reach the constrained optimum, as small + 2 large; in no method's colours.
OUTCOMES = {
    0: ("#EDEDED", "neither"),
    1: ("#DDCC77", "0.005 alone"),
    2: ("#7E6BB0", "0.01 alone,\nas in the paper"),
    3: ("#CFC6E3", "both"),
}


def draw_paths(
    paths: Sequence[Path], choices: Sequence[Gains], colours: Sequence[str], known: Optima, shown: int
) -> Figure:
    """Trajectories over the level sets, and the multiplier and the violation over the first `shown` steps."""
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


def draw_basins(basins: dict[float, torch.Tensor], known: Optima) -> Figure:
    """For each primal step, the starts by which step sizes of gradient ascent reach the optimum."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    fig = style.figure(9.6, 3.1)
    colours = ListedColormap([colour for colour, _ in OUTCOMES.values()])
    norm = BoundaryNorm([-0.5, 0.5, 1.5, 2.5, 3.5], len(OUTCOMES))
    for axes, (step, outcome) in zip(fig.subplots(1, len(basins), sharey=True), basins.items(), strict=True):
        half = (AREA[1] - AREA[0]) / (len(outcome) - 1) / 2
        edges = (AREA[0] - half, AREA[1] + half) * 2
        axes.imshow(outcome, origin="lower", extent=edges, cmap=colours, norm=norm, aspect="equal")
        _mark(axes, START, "o", "white", "the start used")
        _mark(axes, known.unconstrained, "*", "0.75", "unconstrained optimum")
        _mark(axes, known.local, "X", "white", "local constrained optimum")
        _mark(axes, known.constrained, "*", style.OPTIMUM, "constrained optimum")
        axes.set(title=f"primal step {step:g}", xlabel="$x_1$ at the start")
        axes.grid(visible=False)
    fig.axes[0].set_ylabel("$x_2$ at the start")
    met = sorted({int(value) for outcome in basins.values() for value in outcome.unique()})
    patches = [Patch(color=OUTCOMES[value][0], label=OUTCOMES[value][1]) for value in met]
    marks, _ = fig.axes[0].get_legend_handles_labels()
    title = "gradient ascent reaches the\nconstrained optimum at step"
    fig.legend(handles=[*patches, *marks], loc="outside right center", title=title, title_fontsize=8)
    return fig
