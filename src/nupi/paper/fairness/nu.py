"""What nu does on the fairness task: the noise of the multipliers, over nu and over kp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from nupi.paper import style
from nupi.paper.fairness.curves import Curves, Player, train_all
from nupi.paper.numbers import clearly_above, percent, spread
from nupi.paper.runner import Claim, TargetRun, target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUS = (0.0, 0.5, 0.9, 0.95, 0.99)
BEST_KP = 5.0
KPS = (0.01, 0.1, 1.0, 5.0, 10.0, 100.0)  # log-spaced in [0.01, 100] as in the paper, and its best
KP_NUS = (0.0, 0.99)
SIZES = {"smoke": (4, 1), "laptop": (40, 5), "paper": (700, 5)}  # epochs, seeds
GROUP = 2  # the multiplier that is drawn


def players() -> dict[str, Player]:
    """Gradient ascent, every nu at the best kp, and every kp at the smallest and the largest nu."""
    grid = {(nu, BEST_KP) for nu in NUS} | {(nu, kp) for nu in KP_NUS for kp in KPS}
    return {"gradient ascent": Player()} | {key(nu, kp): Player(kp=kp, nu=nu) for nu, kp in sorted(grid)}


def key(nu: float, kp: float) -> str:
    """What a player is called in the results."""
    return f"nuPI, nu = {nu:g}, kp = {kp:g}"


@target(
    "fairness-nu",
    paper="Section 5.2 and its appendix: the choice of nu and kp on Adult",
    about="nu in 0, 0.5, 0.9, 0.95, 0.99 and kp in 0.01 .. 100: what they do to the noise of the multipliers",
    scales=("smoke", "laptop", "paper"),
)
def fairness_nu(run: TargetRun) -> list[Claim]:
    """Train the grid, draw the noise of the multipliers over it, and compare with what the paper says."""
    epochs, seeds = SIZES[run.scale]
    curves = train_all(run, players(), epochs, seeds)
    run.figure(draw(curves))
    table = summary(curves)
    run.results(table)
    run.table(
        f"{epochs} epochs, {seeds} seeds; noise is how far a multiplier moves in an epoch", shown(curves)
    )
    return claims(curves)


def claims(curves: Mapping[str, Curves]) -> list[Claim]:
    """The paper's statements about nu and kp against these runs."""
    by_nu = {nu: curves[key(nu, BEST_KP)] for nu in NUS}
    noise = [by_nu[nu].noise().mean().item() for nu in NUS]
    by_kp = [curves[key(0.0, kp)] for kp in KPS]
    rough = [each.noise().mean().item() for each in by_kp]
    smoothed = {kp: curves[key(NUS[-1], kp)].violation[:, 1:].mean(1) for kp in KPS}
    accuracy = {nu: each.final(each.accuracy).mean().item() for nu, each in by_nu.items()}
    violation = {nu: each.violation[:, 1:].mean().item() for nu, each in by_nu.items()}
    return [
        Claim(
            "a larger nu makes the multipliers less noisy (kp = 5)",
            "nu = 0 is noisy, higher nu improves the dynamics",
            "noise " + ", ".join(f"{x:.2g} at nu = {nu:g}" for nu, x in zip(NUS, noise, strict=True)),
            bool(np.all(np.diff(noise) < 0)),
        ),
        Claim(
            "nu = 0.99 trains best of the five (kp = 5)",
            "best results at 0.99",
            "accuracy " + ", ".join(f"{x:.1%} at {nu:g}" for nu, x in accuracy.items()),
            max(accuracy, key=lambda nu: accuracy[nu]) == NUS[-1],
        ),
        Claim(
            "nu = 0.99 has the lowest violation over the run of the five (kp = 5)",
            "best results at 0.99",
            "mean violation " + ", ".join(f"{x:.1%} at {nu:g}" for nu, x in violation.items()),
            min(violation, key=lambda nu: violation[nu]) == NUS[-1],
        ),
        Claim(
            "kp = 5 has the lowest violation over the run of the six kp, by more than the seeds' spread (nu = 0.99)",
            "best results with kp = 5",
            "mean violation " + ", ".join(f"{percent(x)} at kp = {kp:g}" for kp, x in smoothed.items()),
            all(clearly_above(x - smoothed[BEST_KP]) for kp, x in smoothed.items() if kp != BEST_KP),
        ),
        Claim(
            "with nu = 0 a larger kp makes the multipliers noisier, from kp = 1 on",
            "larger kp: noisier multipliers, unstable optimization",
            "noise " + ", ".join(f"{x:.2g} at kp = {kp:g}" for kp, x in zip(KPS, rough, strict=True)),
            bool(np.all(np.diff(rough[KPS.index(1.0) :]) > 0)),
        ),
    ]


def summary(curves: Mapping[str, Curves]) -> pd.DataFrame:
    """One row a setting and seed: the numbers behind the figure."""
    grid = players()
    rows = [
        {
            "method": name,
            "kp": grid[name].kp,
            "nu": grid[name].nu,
            "seed": seed,
            "noise": each.noise()[seed].item(),
            "train_accuracy": each.final(each.accuracy)[seed].item(),
            "final_violation": each.final(each.violation)[seed].item(),
            "mean_violation": each.violation[seed, 1:].mean().item(),
            "epochs_to_5_percent": each.first_below(0.05)[seed].item(),
        }
        for name, each in curves.items()
        for seed in range(len(each.accuracy))
    ]
    return pd.DataFrame(rows)


def shown(curves: Mapping[str, Curves]) -> pd.DataFrame:
    """The same for a reader: mean and standard deviation over the seeds."""
    rows = [
        {
            "method": name,
            "noise": spread(each.noise(), digits=4),
            "train accuracy": percent(each.final(each.accuracy)),
            "final violation": percent(each.final(each.violation), 2),
            "violation over the run": percent(each.violation[:, 1:].mean(1)),
        }
        for name, each in curves.items()
    ]
    return pd.DataFrame(rows)


def draw(curves: Mapping[str, Curves]) -> Figure:
    """A multiplier for each nu; the noise over kp; and over what an error is multiplied by at once."""
    fig = style.figure(7.2, 4.6)
    grid = fig.add_gridspec(2, 10)
    shades = dict(zip(NUS, style.shades("nupi", len(NUS)), strict=True))
    first: Axes | None = None
    for i, nu in enumerate(NUS):
        axis = fig.add_subplot(grid[0, 2 * i : 2 * i + 2], sharey=first)
        first = first or axis
        axis.plot(curves["gradient ascent"].multipliers[0, :, GROUP], color=style.colour("ga"), linewidth=0.9)
        axis.plot(curves[key(nu, BEST_KP)].multipliers[0, :, GROUP], color=shades[nu], linewidth=0.9)
        axis.set_title(rf"$\nu = {nu:g}$, $k_p = {BEST_KP:g}$", size=9)
        axis.set_xlabel("Epoch")
        axis.tick_params(labelleft=i == 0)
    assert first is not None
    first.set_ylabel(f"Multiplier {GROUP}, one seed")
    left = fig.add_subplot(grid[1, :5], xscale="log", yscale="log")
    right = fig.add_subplot(grid[1, 5:], xscale="log", yscale="log")
    for nu in KP_NUS:
        means = [curves[key(nu, kp)].noise().mean() for kp in KPS]
        left.plot(KPS, means, color=shades[nu], linewidth=1.2, label=rf"$\nu = {nu:g}$")
    for name, player in players().items():
        if player.kp:
            noise, colour = curves[name].noise(), shades[player.nu]
            left.plot([player.kp] * len(noise), noise, "o", color=colour, markersize=3.5, alpha=0.7)
            gain = player.kp * (1 - player.nu)
            right.plot([gain] * len(noise), noise, "o", color=colour, markersize=3.5, alpha=0.7)
    calm = curves["gradient ascent"].noise().mean().item()
    for axis in (left, right):
        axis.axhline(calm, color=style.colour("ga"), linewidth=1, linestyle="--", label=style.LABELS["ga"])
    left.set_ylabel("Step of a multiplier\nin an epoch (RMS)")
    left.set_xlabel(r"$k_p$")
    right.set_xlabel(r"$k_p (1 - \nu)$, the gain on a new error")
    right.tick_params(labelleft=False)
    right.set_ylim(left.get_ylim())
    left.legend(loc="upper left")
    dots = [
        Line2D([], [], color=shades[nu], marker="o", linestyle="", label=rf"$\nu = {nu:g}$") for nu in NUS
    ]
    right.legend(handles=dots, loc="upper left", ncols=2, markerscale=0.6)
    return fig
