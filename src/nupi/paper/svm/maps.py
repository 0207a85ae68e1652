"""Heat maps of the distance to lambda* over (ki, kp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm

from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import CONVERGED, RUNAWAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    import nupi

GREY = "#B0B0B0"
FLOOR = 1e-6  # all that is nearer than this has one colour


def draw_map(axes: Axes, found: nupi.Solution) -> QuadMesh:
    """The map of a sweep over kp and ki: grey beyond 1e3, a dot where the run converged."""
    ki, kp = (np.array(found.axes[name]) for name in ("ki", "kp"))
    distance = svm().distance(found.multipliers["inequality"]).numpy()
    if list(found.axes) != ["kp", "ki"]:
        raise ValueError(f"a map has the axes kp and ki, but this sweep has {list(found.axes)}")
    shown = np.ma.masked_where(~(distance <= RUNAWAY), distance)
    axes.set_facecolor(GREY)
    mesh = axes.pcolormesh(
        10 ** edges(np.log10(ki)),
        edges(kp),
        shown,
        norm=LogNorm(FLOOR, RUNAWAY),
        cmap="viridis_r",
        edgecolors="white",
        linewidth=0.15,
    )
    rows, columns = np.nonzero(distance < CONVERGED)
    axes.scatter(ki[columns], kp[rows], s=5, color="black", linewidths=0, zorder=3)
    axes.set_xscale("log")
    axes.set_xlabel(r"$\kappa_i$")
    axes.grid(visible=False)
    return mesh


def colour_bar(fig: Figure, mesh: QuadMesh, axes: Sequence[Axes]) -> None:
    """One bar for all maps, with what the grey and the dots mean."""
    bar = fig.colorbar(mesh, ax=list(axes), extend="min", pad=0.015)
    bar.set_label(
        f"distance to $\\lambda^*$\n(grey: over {RUNAWAY:g}; dots: below {CONVERGED:g})", fontsize=8
    )


def edges(centres: np.ndarray) -> np.ndarray:
    """The edges of cells around their centres, half-way between neighbours.

    >>> edges(np.array([0.0, 1.0, 3.0])).tolist()
    [-0.5, 0.5, 2.0, 4.0]
    """
    middle = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middle[0], 2 * centres[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])
