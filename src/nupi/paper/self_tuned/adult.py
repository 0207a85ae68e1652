"""Target `self-tuned-adult`: SelfTuned on the paper's fairness experiment, beside fixed gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nupi.paper import style
from nupi.paper.fairness.curves import Curves, Player, train_all
from nupi.paper.numbers import percent, spread
from nupi.paper.runner import Claim, Scale, TargetRun, target

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from matplotlib.figure import Figure

OURS = "SelfTuned"
ON_BATCHES = "SelfTuned, measured on batches"
SOONER = "SelfTuned, a tenth of the epochs as steps"
GRID = (0.03, 0.1, 0.3, 1.0, 3.0)
SIZES: dict[Scale, tuple[int, int]] = {"smoke": (4, 1), "laptop": (40, 5), "paper": (700, 3)}  # epochs, seeds
ALLOWED = 0.01  # of accuracy: what a lower violation may cost


def players(epochs: int) -> dict[str, Player]:
    """SelfTuned with a quarter of the epochs; gradient ascent over a grid; the paper's controller.

    The multipliers move once an epoch, on all rows, so that is what SelfTuned measures the response on. A batch has few
    rows of the smaller groups; what SelfTuned makes of that is shown, too, and what it does if asked to be sooner.
    """
    quarter = max(1.0, epochs / 4)
    return {
        OURS: Player(ki=None, horizon=quarter, on_all_rows=True),
        ON_BATCHES: Player(ki=None, horizon=quarter),
        SOONER: Player(ki=None, horizon=max(1.0, epochs / 10), on_all_rows=True),
        **{f"gradient ascent {ki:g}": Player(ki=ki) for ki in GRID},
        "nuPI 0.03, 5, 0.99": Player(kp=5.0, nu=0.99),
        "nuPI 0.03, 5, 0.9": Player(kp=5.0, nu=0.9),
    }


@target(
    "self-tuned-adult",
    paper="not in the paper",
    about="gains that find themselves on Adult under parity of ten groups, beside fixed gains",
    scales=("smoke", "laptop", "paper"),
)
def self_tuned_adult(run: TargetRun) -> list[Claim]:
    """Train every player with every seed, and compare the violation over the whole run."""
    epochs, seeds = SIZES[run.scale]
    curves = train_all(run, players(epochs), epochs, seeds)
    run.results(
        pd.DataFrame(
            {
                "method": name,
                "seed": seed,
                "mean_violation": mean_violation(each)[seed].item(),
                "final_violation": each.final(each.violation)[seed].item(),
                "train_accuracy": each.final(each.accuracy)[seed].item(),
                "largest_multiplier": each.multipliers[seed].abs().max().item(),
                "cpu_seconds": each.seconds[seed].item(),
            }
            for name, each in curves.items()
            for seed in range(seeds)
        )
    )
    run.figure(_draw(curves))
    rows = [
        {
            "method": name,
            "mean violation": percent(mean_violation(each), 1),
            "final violation": percent(each.final(each.violation), 1),
            "train accuracy": percent(each.final(each.accuracy), 1),
            "CPU s": spread(each.seconds, digits=0),
        }
        for name, each in curves.items()
    ]
    run.table(f"Adult, {epochs} epochs, {seeds} seeds", pd.DataFrame(rows))
    return claims(curves)


def mean_violation(curves: Curves) -> torch.Tensor:
    """Of a whole run, the untrained model aside; by seed."""
    return curves.violation[:, 1:].mean(1)


def claims(curves: Mapping[str, Curves]) -> list[Claim]:
    """Below every fixed setting in mean violation, at no more than a point of accuracy less than the best of them."""
    violation = {name: mean_violation(each).mean().item() for name, each in curves.items()}
    accuracy = {name: each.final(each.accuracy).mean().item() for name, each in curves.items()}
    fixed = [name for name in curves if not name.startswith(OURS)]
    lowest = min(fixed, key=violation.__getitem__)
    return [
        Claim(
            "the mean violation is below that of every fixed setting",
            "goal",
            f"{violation[OURS]:.1%} against {violation[lowest]:.1%} ({lowest})",
            violation[OURS] < violation[lowest],
        ),
        Claim(
            "and training accuracy is at most a point below that of the setting with the lowest mean violation",
            "goal",
            f"{accuracy[OURS]:.1%} against {accuracy[lowest]:.1%}",
            accuracy[OURS] >= accuracy[lowest] - ALLOWED,
        ),
    ]


def _draw(curves: Mapping[str, Curves]) -> Figure:
    fig = style.figure(7.2, 2.8)
    left, right = fig.subplots(1, 2)
    shades = iter(style.shades("ga", len(GRID)))
    for name, each in curves.items():
        ascent = name.startswith("gradient ascent")
        colour = next(shades) if ascent else style.colour("self-tuned" if name.startswith(OURS) else "nupi")
        width = 1.6 if name == OURS else 0.8
        line: dict[str, Any] = {
            "color": colour,
            "linewidth": width,
            "linestyle": {ON_BATCHES: ":", SOONER: "--"}.get(name, "-"),
        }
        left.plot(100 * each.violation.mean(0), **line, label=name)
        right.plot(100 * each.accuracy.mean(0), **line)
    left.set_ylabel("Maximum violation (%)")
    left.set_yscale("log")
    right.set_ylabel("Training accuracy (%)")
    for axes in (left, right):
        axes.set_xlabel("Epoch")
    left.legend(fontsize=6)
    return fig
