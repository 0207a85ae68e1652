"""Target `fairness-ki`: the step size of gradient ascent, chosen as the paper says it was, on Adult."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nupi.paper import style
from nupi.paper.fairness.curves import Curves, Player, train_all
from nupi.paper.numbers import percent, spread
from nupi.paper.runner import Claim, TargetRun, target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

KIS = (0.003, 0.01, 0.03, 0.1, 0.3)
PAPER = 0.03
FAIR = 0.05  # a violation above this is not what the paper calls a solution
SIZES = {"smoke": (4, 1), "laptop": (40, 5), "paper": (700, 5)}  # epochs, seeds


@target(
    "fairness-ki",
    paper="Section 5.2: the dual step size, chosen for the best training accuracy of gradient ascent",
    about="gradient ascent on Adult with five step sizes: which would the paper's rule choose?",
    scales=("smoke", "laptop", "paper"),
)
def fairness_ki(run: TargetRun) -> list[Claim]:
    """Train gradient ascent with every step size, and see which has the best training accuracy."""
    epochs, seeds = SIZES[run.scale]
    found = train_all(run, {f"{ki:g}": Player(ki=ki) for ki in KIS}, epochs, seeds)
    curves = {ki: found[f"{ki:g}"] for ki in KIS}
    run.results(
        pd.DataFrame(
            {
                "ki": ki,
                "seed": seed,
                "train_accuracy": each.final(each.accuracy)[seed].item(),
                "final_violation": each.final(each.violation)[seed].item(),
                "epochs_to_5_percent": each.first_below(FAIR)[seed].item(),
            }
            for ki, each in curves.items()
            for seed in range(seeds)
        )
    )
    run.figure(_draw(curves))
    run.table(f"Gradient ascent, {epochs} epochs, {seeds} seeds", _shown(curves))
    return claims(curves)


def claims(curves: Mapping[float, Curves]) -> list[Claim]:
    """Whether the paper's rule leads to its step size here."""
    accuracy = {ki: each.final(each.accuracy).mean().item() for ki, each in curves.items()}
    fair = {ki: each.final(each.violation).mean().item() < FAIR for ki, each in curves.items()}
    candidates = [ki for ki in curves if fair[ki]]
    best = max(candidates, key=lambda ki: accuracy[ki]) if candidates else None
    return [
        Claim(
            f"of the step sizes that end below {FAIR:.0%} violation, {PAPER:g} has the best training accuracy",
            f"{PAPER:g}",
            "; ".join(f"{ki:g}: {accuracy[ki]:.2%}{'' if fair[ki] else ' (not fair)'}" for ki in curves),
            best == PAPER,
        )
    ]


def _shown(curves: Mapping[float, Curves]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "ki": f"{ki:g}",
            "train accuracy": percent(each.final(each.accuracy), 2),
            "max violation": percent(each.final(each.violation), 2),
            "first below 5%": spread(each.first_below(FAIR), digits=0),
        }
        for ki, each in curves.items()
    )


def _draw(curves: Mapping[float, Curves]) -> Figure:
    fig = style.figure(7.2, 2.8)
    left, right = fig.subplots(1, 2)
    for (ki, each), shade in zip(curves.items(), style.shades("ga", len(curves)), strict=True):
        epochs = range(1, each.epochs + 1)  # the untrained network is fair, and would squeeze the rest
        left.plot(epochs, 100 * each.accuracy[:, 1:].mean(0), color=shade, linewidth=1, label=f"{ki:g}")
        right.plot(epochs, 100 * each.violation[:, 1:].mean(0), color=shade, linewidth=1)
    left.set_ylabel("Training accuracy (%)")
    right.set_ylabel("Maximum violation (%)")
    right.set_yscale("log")
    for axis in (left, right):
        axis.set_xlabel("Epoch")
    left.legend(title=r"$\kappa_i$", ncols=2)
    return fig
