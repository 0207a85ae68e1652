"""How every figure of the reproduction looks: one colour a method, everywhere, safe for colour-blind readers.

Figures are drawn on matplotlib's Agg canvas without pyplot, so that nothing global is touched and nothing
needs a display. The runner draws every target inside `context`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

# Okabe and Ito's palette.
COLOURS: dict[str, str] = {
    "nupi": "#0072B2",
    "ga": "#D55E00",
    "restart": "#E69F00",
    "polyak": "#CC79A7",
    "polyak-negative": "#882255",
    "nesterov": "#009E73",
    "adam": "#56B4E9",
    "pid": "#117733",
    "self-tuned": "#2E8B57",
    "unconstrained": "#777777",
}

LABELS: dict[str, str] = {
    "nupi": r"$\nu$PI",
    "ga": "Gradient ascent",
    "restart": "GA + dual restarts",
    "polyak": "Polyak",
    "polyak-negative": "Polyak, negative",
    "nesterov": "Nesterov",
    "adam": "Adam",
    "pid": "PID",
    "self-tuned": "SelfTuned",
    "unconstrained": "Unconstrained",
}

FEASIBLE = "#D9EAD3"  # the shade of the feasible side
OPTIMUM = "#000000"  # stars and lines that mark the solution

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.dpi": 200,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def context() -> AbstractContextManager[None]:
    """The style, for as long as the `with` block lasts."""
    return mpl.rc_context(cast("Any", STYLE))


def figure(width: float = 7.0, height: float = 3.0) -> Figure:
    """An empty figure of so many inches; add axes with `fig.add_subplot` or `fig.subplots`."""
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def colour(method: str) -> str:
    """The colour of a method; the same in every figure."""
    if method not in COLOURS:
        raise KeyError(f"no colour for method={method!r}; known: {', '.join(COLOURS)}")
    return COLOURS[method]


def shades(method: str, count: int) -> list[str]:
    """`count` shades of a method's colour, light to dark, for a gain that grows.

    >>> len(shades("nupi", 3))
    3
    """
    middle = to_rgb(colour(method))
    light = tuple(0.45 * part + 0.55 for part in middle)
    dark = tuple(0.45 * part for part in middle)
    ramp = LinearSegmentedColormap.from_list(method, [light, middle, dark])
    return [to_hex(ramp(0.5 if count == 1 else i / (count - 1))) for i in range(count)]


def mark_feasible(axes: Axes, lower: float, upper: float) -> None:
    """Shade the feasible side of a horizontal level between `lower` and `upper`, behind everything."""
    axes.axhspan(lower, upper, color=FEASIBLE, zorder=0, linewidth=0)
