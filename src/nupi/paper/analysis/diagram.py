"""The control diagram: the multipliers are set by a nuPI controller, whose error is the constraint violation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from nupi.paper import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw() -> Figure:
    """The loop from the violation through the three terms to the multiplier, the model, and back."""
    fig = style.figure(8.4, 2.9)
    axes = fig.add_subplot(xlim=(0, 12), ylim=(-0.4, 3.9))
    axes.axis("off")
    _box(axes, (1.0, 4.2), 3.2, "smooth\n$\\xi_t = \\nu\\,\\xi_{t-1} + (1-\\nu)\\,e_t$")
    _box(axes, (4.9, 7.1), 3.2, r"proportional  $\kappa_p\,\xi_t$")
    _box(axes, (4.9, 7.1), 1.8, r"integral  $\kappa_i \sum e$")
    _box(axes, (7.8, 8.2), 2.5, "+", height=0.5)
    _box(axes, (8.9, 10.1), 2.5, "project\n$\\theta_{t+1}$")
    _box(axes, (3.2, 8.8), 0.2, r"the model:  $x_{t+1} = x_t - \eta\,\nabla_x L(x_t, \theta_{t+1})$")
    _line(axes, (3.2, 0.2), (0.2, 0.2), (0.2, 2.5), (0.6, 2.5))
    _arrow(axes, (0.6, 2.5), (0.6, 3.2), (1.0, 3.2))
    _arrow(axes, (0.6, 2.5), (0.6, 1.8), (4.9, 1.8))
    _arrow(axes, (4.2, 3.2), (4.9, 3.2))
    _arrow(axes, (7.1, 3.2), (8.0, 3.2), (8.0, 2.75))
    _arrow(axes, (7.1, 1.8), (8.0, 1.8), (8.0, 2.25))
    _arrow(axes, (8.2, 2.5), (8.9, 2.5))
    _arrow(axes, (10.1, 2.5), (11.4, 2.5), (11.4, 0.2), (8.8, 0.2))
    axes.text(10.2, 2.62, "multiplier", fontsize=8)
    axes.text(0.35, 0.32, r"violation  $e_t = c(x_t)$", fontsize=8)
    return fig


def _box(axes: Axes, sides: tuple[float, float], y: float, text: str, height: float = 0.9) -> None:
    """A box from left to right, its middle at y."""
    left, right = sides
    face = style.shades("nupi", 3)[0]
    axes.add_patch(Rectangle((left, y - height / 2), right - left, height, facecolor=face, alpha=0.35))
    axes.add_patch(Rectangle((left, y - height / 2), right - left, height, fill=False, linewidth=0.8))
    axes.text((left + right) / 2, y, text, ha="center", va="center", fontsize=9)


def _line(axes: Axes, *points: tuple[float, float]) -> None:
    axes.plot(*zip(*points, strict=True), color="black", linewidth=1)


def _arrow(axes: Axes, *points: tuple[float, float]) -> None:
    """A line through the points with a head at the last."""
    _line(axes, *points)
    look = {"arrowstyle": "-|>", "color": "black", "linewidth": 1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", points[-1], points[-2], arrowprops=look)
