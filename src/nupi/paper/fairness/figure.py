"""The figure of the fairness experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.paper import style

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nupi.paper.fairness.curves import Curves

COLOURS = {
    "gradient ascent": style.colour("ga"),
    "nuPI, nu = 0": style.shades("nupi", 3)[0],
    "nuPI, nu = 0.99": style.colour("nupi"),
}
LABELS = {
    "gradient ascent": style.LABELS["ga"],
    "nuPI, nu = 0": r"$\nu$PI, $\nu = 0$",
    "nuPI, nu = 0.99": r"$\nu$PI, $\nu = 0.99$",
}


def draw(curves: Mapping[str, Curves], groups: tuple[str, ...], shown: tuple[int, int]) -> Figure:
    """The paper's figure: two multipliers, the accuracy, the maximum violation; mean and range of the seeds."""
    fig = style.figure(7.2, 4.8)
    axes = fig.subplots(2, 2, sharex=True)
    for axis, group in zip(axes[0], shown, strict=True):
        axis.set_title(f"Multiplier {group}: {groups[group]}")
        for name in COLOURS:
            _band(axis, curves[name].multipliers[:, :, group], name)
        # Linear where the two calm methods are; the unstable one would leave no room for them otherwise.
        axis.set_yscale("symlog", linthresh=0.25, linscale=2.5)
        axis.set_ylim(-3, 3)
        ticks = (-1, -0.2, -0.1, 0, 0.1, 0.2, 1)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axes[1, 0].set_title("Training accuracy (%)")
    axes[1, 1].set_title("Maximum violation (%)")
    for name in COLOURS:
        _band(axes[1, 0], 100 * curves[name].accuracy, name)
        _band(axes[1, 1], 100 * curves[name].violation, name)
    free = curves["unconstrained"]
    grey = style.colour("unconstrained")
    for axis, curve in ((axes[1, 0], free.accuracy), (axes[1, 1], free.violation)):
        axis.plot(100 * curve.mean(0), color=grey, linestyle="--", linewidth=1, label="Unconstrained")
    axes[1, 0].set_ylim(70, 97)
    axes[1, 1].set_yscale("log")
    axes[1, 1].set_ylim(0.7, 60)
    axes[1, 1].set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes[1, 1].minorticks_off()
    axes[1, 1].axhline(1.7, color=style.OPTIMUM, linewidth=0.9, linestyle=":", zorder=4)
    axes[1, 1].annotate("1.7", (0, 1.7), xytext=(3, -9), textcoords="offset points", size=7, zorder=4)
    for axis in axes[1]:
        axis.set_xlabel("Epoch")
        axis.set_xlim(0, free.epochs)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=4)
    return fig


def _band(axis: Axes, curves: torch.Tensor, name: str) -> None:
    """The mean over the seeds, and the range from the lowest to the highest of them."""
    epochs = range(curves.shape[1])
    behind = name == "nuPI, nu = 0"
    colour, order = COLOURS[name], 1 if behind else 2
    axis.fill_between(
        epochs, curves.amin(0), curves.amax(0), color=colour, alpha=0.25, linewidth=0, zorder=order
    )
    width = 0.6 if behind else 1.4
    axis.plot(epochs, curves.mean(0), color=colour, label=LABELS[name], linewidth=width, zorder=order + 0.5)
