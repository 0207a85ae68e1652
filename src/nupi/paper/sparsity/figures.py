"""The figures of the sparsity experiment; the feasible side is shaded in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from nupi.paper import style
from nupi.paper.sparsity.tables import by_method, mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.published import Row
    from nupi.paper.sparsity.runs import Trained

LEGEND_ENTRY = 1.35  # inches that one takes
BETAS = {-0.9: "v", -0.7: "v", -0.5: "v", -0.3: "<", 0.3: ">", 0.5: "^", 0.9: "^"}


def marker(dual: Dual) -> str:
    """Shapes tell apart what has one colour."""
    if dual.kind == "polyak":
        return BETAS.get(dual.beta, "o")
    return "D" if dual.init == "zero" else "o"


def tradeoff(trained: Sequence[Trained]) -> Figure:
    """Training accuracy against the final violation, a panel for each density."""
    epsilons = list(dict.fromkeys(each.wanted.epsilon for each in trained))
    fig = style.figure(2.1 * len(epsilons) + 1.0, 3.2)
    panels = fig.subplots(1, len(epsilons), squeeze=False)[0]
    for axis, epsilon in zip(panels, epsilons, strict=True):
        _boundary(axis)
        for dual, seeds in by_method(trained, epsilon).items():
            x, y = [each.violation for each in seeds], [each.train for each in seeds]
            face = "none" if dual.init == "zero" else style.colour(dual.colour)
            axis.plot(x, y, marker(dual), color=style.colour(dual.colour), markerfacecolor=face, markersize=6)
        axis.set_title(f"Density at most {epsilon:.0%}")
        axis.set_xlabel("Violation (points)")
        _shade_left(axis)
    panels[0].set_ylabel("Training accuracy (%)")
    _legend(fig, _methods(trained))
    return fig


def layers(trained: Sequence[Trained]) -> Figure:
    """The final violation of each layer, method by method, a panel for each density; the first seed."""
    epsilons = list(dict.fromkeys(each.wanted.epsilon for each in trained))
    fig = style.figure(2.1 * len(epsilons) + 1.6, 2.8)
    panels = fig.subplots(1, len(epsilons), squeeze=False, sharey=True)[0]
    for axis, epsilon in zip(panels, epsilons, strict=True):
        _boundary(axis)
        methods = by_method(trained, epsilon)
        for height, (dual, seeds) in enumerate(reversed(methods.items())):
            found, colour = seeds[0].violations.sort().values, style.colour(dual.colour)
            face = "none" if dual.init == "zero" else colour
            axis.plot(found[[0, -1]], [height, height], color=colour, linewidth=1)
            axis.plot(found, [height] * len(found), "o", color=colour, markerfacecolor=face, markersize=3.5)
        # nuPI's kp differs from density to density, so the shared labels leave it out.
        names = [dual.label.replace(f" kp = {dual.kp:g}", "") for dual in methods]
        axis.set_yticks(range(len(methods)), reversed(names))
        axis.set_title(f"Density at most {epsilon:.0%}")
        axis.set_xlabel("Violation (points)")
        _shade_left(axis)
    return fig


def variants(trained: Sequence[Trained]) -> Figure:
    """Final violation and training accuracy, a row a method, a dot a seed and a line at their mean."""
    methods = by_method(trained, trained[0].wanted.epsilon)
    fig = style.figure(7.2, 0.22 * len(methods) + 1.0)
    left, right = fig.subplots(1, 2, sharey=True)
    for height, (dual, seeds) in enumerate(reversed(methods.items())):
        for axis, values in ((left, [run.violation for run in seeds]), (right, [run.train for run in seeds])):
            colour = style.colour(dual.colour)
            axis.plot(values, [height] * len(values), "o", color=colour, markersize=4, alpha=0.6)
            axis.plot(sum(values) / len(values), height, "|", color=colour, markersize=12)
    left.set_yticks(range(len(methods)), [dual.label for dual in reversed(methods)])
    _boundary(left)
    _shade_left(left)
    left.set_xlabel("Violation (points)")
    right.set_xlabel("Training accuracy (%)")
    return fig


def dynamics(trained: Sequence[Trained]) -> Figure:
    """Violation and multiplier over the run, one line a method; fixed multipliers from light to dark."""
    fixed = sorted({each.wanted.dual.multiplier for each in trained if each.wanted.dual.multiplier})
    shades = dict(zip(fixed, style.shades("nupi", len(fixed)), strict=True))
    fig = style.figure(7.2, 3.0)
    left, right = fig.subplots(1, 2)
    for each in trained:
        dual = each.wanted.dual
        dashes = "--" if dual.init == "zero" else "-"
        colour = shades.get(dual.multiplier, style.colour(dual.colour))
        steps, look = each.value["step"], {"color": colour, "linestyle": dashes}
        left.plot(steps, each.path[:, 0], linewidth=1.2, **look)
        right.plot(steps, each.value["multipliers"][:, 0], linewidth=1.2, label=dual.label, **look)
    left.set_ylabel("Violation (points)")
    left.set_ylim(min(-15, min(each.worst for each in trained) - 2))
    style.mark_feasible(left, left.get_ylim()[0], 0)
    right.set_ylabel("Multiplier")
    right.set_yscale("symlog", linthresh=1)
    right.set_ylim(0)
    for axis in (left, right):
        axis.set_xlabel("Step")
    fig.legend(loc="outside lower center", ncols=4)
    return fig


def ablation(
    trained: Sequence[Trained],
    series: Mapping[str, Mapping[float, Mapping[float, Dual]]],
    published: Mapping[float, Mapping[str, Mapping[float, Row]]],
    *,
    name: str,
    linear_below: float | None,
    colours: Mapping[str, str],
) -> Figure:
    """Violation and training accuracy against a gain; a row for each density, the paper's dotted.

    Args:
        trained: the runs.
        series: by name, density and value of the gain, the method.
        published: by density, series and value, the paper's row.
        name: of the gain.
        linear_below: the gain's axis is logarithmic above it; linear everywhere if None.
        colours: of the series.
    """
    epsilons = list(dict.fromkeys(each.wanted.epsilon for each in trained))
    fig = style.figure(7.2, 2.5 * len(epsilons))
    rows = fig.subplots(len(epsilons), 2, squeeze=False, sharex=True)
    for (left, right), epsilon in zip(rows, epsilons, strict=True):
        methods = by_method(trained, epsilon)
        for title, by_density in series.items():
            values = sorted(by_density[epsilon])
            seeds = [methods[by_density[epsilon][value]] for value in values]
            look = {"color": style.colour(colours[title]), "linestyle": "-"}
            if "zero" in title:  # one method, one colour: what differs is the line
                look |= {"linestyle": "--", "markerfacecolor": "none"}
            left.plot(
                values,
                [mean(x, lambda run: run.violation) for x in seeds],
                "o",
                label=title,
                markersize=3,
                **look,
            )
            right.plot(values, [mean(x, lambda run: run.train) for x in seeds], "o", markersize=3, **look)
        for title, rows_of in published[epsilon].items():
            look = {"color": style.colour(colours[title]), "linestyle": ":"}
            values = sorted(rows_of)
            left.plot(values, [rows_of[value].violation for value in values], label=f"{title}, paper", **look)
            right.plot(values, [rows_of[value].train for value in values], **look)
        for axis in (left, right):
            if linear_below is not None:
                axis.set_xscale("symlog", linthresh=linear_below, linscale=0.4)
                smallest, largest = min(_gains(series, epsilon)), max(_gains(series, epsilon))
                decades = [
                    10.0**power for power in range(-5, 3) if linear_below <= 10.0**power <= 1.5 * largest
                ]
                axis.set_xticks([0, *decades], ["0", *(f"{decade:g}" for decade in decades)])
                axis.set_xlim(0 if smallest == 0 else 0.7 * smallest, 1.5 * largest)
        left.set_ylabel(f"Violation at {epsilon:.0%}\n(points)")
        right.set_ylabel(f"Training accuracy\nat {epsilon:.0%} (%)")
        bottom, top = left.get_ylim()
        style.mark_feasible(left, bottom, 0)
        left.set_ylim(bottom, top)
    for axis in rows[-1]:
        axis.set_xlabel(name)
    handles, labels = rows[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return fig


def _gains(series: Mapping[str, Mapping[float, Mapping[float, Dual]]], epsilon: float) -> list[float]:
    return [value for by_density in series.values() for value in by_density[epsilon]]


def _boundary(axis: Axes) -> None:
    axis.axvline(0, color=style.OPTIMUM, linewidth=0.8)


def _shade_left(axis: Axes) -> None:
    low, high = axis.get_xlim()
    axis.axvspan(min(low, -1), 0, color=style.FEASIBLE, zorder=0, linewidth=0)
    axis.set_xlim(min(low, -1), max(high, 1))


def _methods(trained: Sequence[Trained]) -> list[Dual]:
    """Each method once, whatever nuPI's kp."""
    return list(
        {
            each.wanted.dual.label.split(" kp")[0] + each.wanted.dual.init: each.wanted.dual
            for each in trained
        }.values()
    )


def _legend(fig: Figure, methods: Sequence[Dual]) -> None:
    handles = []
    for dual in methods:
        colour = style.colour(dual.colour)
        handles.append(
            Line2D(
                [],
                [],
                linestyle="",
                marker=marker(dual),
                color=colour,
                markerfacecolor="none" if dual.init == "zero" else colour,
                label=dual.label.replace(f" kp = {dual.kp:g}", ""),
            )
        )
    fitting = max(1, int(fig.get_figwidth() / LEGEND_ENTRY))
    fig.legend(handles=handles, loc="outside lower center", ncols=min(fitting, len(handles)))
