"""Draws docs/figures/growth.png from results/benchmarks/growth.csv: `python -m benchmarks.growth_figure`."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from benchmarks.growth import TABLE
from benchmarks.page import PAGE
from nupi.paper import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = PAGE.parent / "figures" / "growth.png"
PANELS = (
    ("constraints", "seconds", "One ascend, one group"),
    ("groups", "seconds", "One ascend, groups of 10"),
    ("ranks", "seconds", "One ascend of 1,000, many ranks"),
    ("constraints", "bytes", "Memory of one group"),
    ("settings", "seconds", "One sweep of 20 steps"),
    ("settings", "bytes", "Memory of a sweep"),
)
COLOURS = ("nupi", "ga", "nesterov")


def draw() -> None:
    """Six panels, both axes logarithmic; the limit of each is a dashed grey line."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with style.context():
        figure = style.figure(10.0, 5.6)
        for axes, (against, quantity, title) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
            panel = [row for row in rows if (row["against"], row["quantity"]) == (against, quantity)]
            curves(axes, panel)
            axes.set(title=title, xlabel=f"number of {against}", ylabel=quantity, xscale="log", yscale="log")
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
            axes.legend(loc="upper left")
            if against == "ranks":
                counts = sorted({int(row["count"]) for row in panel})
                axes.set_xticks(counts, [str(count) for count in counts])
                axes.set_xticks([], minor=True)
        figure.savefig(FIGURE, dpi=130)


def curves(axes: Axes, rows: list[dict[str, str]]) -> None:
    """Draw every curve of a panel, without zeros, which a logarithmic axis cannot show."""
    colours = iter(COLOURS)
    for name in dict.fromkeys(row["curve"] for row in rows):
        points = [row for row in rows if row["curve"] == name and float(row["value"]) > 0]
        counts, values = [int(row["count"]) for row in points], [float(row["value"]) for row in points]
        if points and points[0]["limit"] == "1":
            axes.plot(counts, values, "--", color="#777777", label=f"limit: {name}")
        else:
            axes.plot(counts, values, "o-", markersize=3, color=style.colour(next(colours)), label=name)


if __name__ == "__main__":
    draw()
