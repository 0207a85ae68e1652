"""nuPI's step beside gradient ascent's, for six choices of gains."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.theory.relative_update import UpdateMode, modes, psi, relative_update

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = {UpdateMode.A: "#C9DCF3", UpdateMode.B: "#F5E9A9", UpdateMode.C: "#F4C3BE"}
MEANINGS = {UpdateMode.A: "A: faster", UpdateMode.B: "B: slower", UpdateMode.C: "C: the other way"}
HISTORY = torch.tensor(1.0, dtype=torch.float64)  # xi_{t-1} > 0: the constraint has been violated


class Panel(NamedTuple):
    """A choice of gains."""

    title: str
    ki: float
    kp: float
    nu: float

    def ratio(self, e: torch.Tensor) -> torch.Tensor:
        """The step of nuPI over that of gradient ascent."""
        return relative_update(e, HISTORY, *self[1:])

    @property
    def psi(self) -> float:
        """Where the ratio is zero, in units of xi."""
        return psi(self.ki, self.kp, self.nu)


def _polyak(beta: float) -> Panel:
    gains = nupi.as_nupi(1.0, beta, 0.0)
    return Panel(rf"Polyak, $\beta$ = {beta:g}", gains["ki"], gains["kp"], gains["nu"])


def _pi(kp: float) -> Panel:
    return Panel(rf"$\nu$PI, $\kappa_p$ = {kp:g}, $\kappa_i$ = 1, $\nu$ = 0", 1.0, kp, 0.0)


PANELS = (_polyak(-0.4), _pi(1.0), _polyak(0.3), _pi(0.2), _pi(0.7), _pi(1.3))


@target(
    "relative-update",
    paper="Figures of relative updates, main text and appendix",
    about="nuPI's step over gradient ascent's: modes A, B and C for six choices of gains",
    scales=("paper",),
)
def updates(run: TargetRun) -> list[Claim]:
    """Where nuPI is faster than gradient ascent, slower, or goes the other way."""
    import pandas as pd

    e = torch.linspace(-1.5, 2.5, 4001, dtype=torch.float64)
    e = e[e != 0]
    frames = [
        pd.DataFrame({"panel": panel.title, "e": e, "ratio": panel.ratio(e), "mode": _letters(panel, e)})
        for panel in PANELS
    ]
    run.results(pd.concat(frames))
    run.figure(_draw())

    far = _double(-1e9, 1e9)
    limit = max(float((panel.ratio(far) - 1 / (1 - panel.psi)).abs().max()) for panel in PANELS)
    edges = max(
        float((panel.ratio(_double(panel.psi, 1.0)) - _double(0.0, 1.0)).abs().max()) for panel in PANELS
    )
    negative, plain, positive, *ablation = PANELS
    improving, worsening = torch.linspace(0.01, 0.99, 99), torch.linspace(1.01, 10.0, 99)
    reluctant = torch.linspace(positive.psi + 0.01, -0.01, 50)
    heights = [1 / (1 - panel.psi) for panel in ablation]
    widths = [_width(panel) for panel in ablation]
    small = _pi(1e-6).ratio(_double(-1.0, 0.5, 3.0))
    return [
        Claim(
            "far away the ratio tends to 1/(1 - psi)",
            "asymptote",
            f"off by {limit:.0e} in six panels",
            limit < 1e-6,
        ),
        Claim(
            "it is 0 at psi xi and 1 at xi", "the edges of modes C and B", f"off by {edges:.0e}", edges < 1e-9
        ),
        Claim(
            "kp > 0: A, C, B, A along the violation",
            "A below 0, C to psi xi, B to xi, A beyond",
            f"{_order(plain)}, and Polyak at -0.4 {_order(negative)}",
            _order(plain) == _order(negative) == "ACBA",
        ),
        Claim(
            "positive momentum steps up more as feasibility improves",
            "stronger than gradient ascent for e < xi",
            f"least ratio there {float(positive.ratio(improving).min()):.3f}",
            bool((positive.ratio(improving) > 1).all()),
        ),
        Claim(
            "and less as it worsens",
            "weaker for e > xi",
            f"greatest ratio there {float(positive.ratio(worsening).max()):.3f}",
            bool((positive.ratio(worsening) < 1).all()),
        ),
        Claim(
            "and raises the multiplier of a constraint that is satisfied",
            "mode C on the feasible side",
            f"modes {_order(positive)}; C from {positive.psi:.3f} xi to 0",
            bool((positive.ratio(reluctant) < 0).all()) and _order(positive) == "BCAB",
        ),
        Claim(
            "the asymptote leaves 1 as kp grows",
            "kp 0.2, 0.7, 1.3",
            ", ".join(f"{height:.2f}" for height in heights),
            1 < heights[0] < heights[1] < heights[2],
        ),
        Claim(
            "and the optimistic region widens",
            "wider with kp",
            ", ".join(f"{width:.3f}" for width in widths) + " of xi",
            0 < widths[0] < widths[1] < widths[2],
        ),
        Claim(
            "as kp tends to 0 nuPI is gradient ascent",
            "the constant 1",
            f"ratio within {float((small - 1).abs().max()):.0e} of 1 at kp = 1e-6",
            float((small - 1).abs().max()) < 1e-5,
        ),
    ]


def _double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _letters(panel: Panel, e: torch.Tensor) -> list[str]:
    found = modes(e, HISTORY, panel.ki, panel.kp, panel.nu)
    return [UpdateMode(value).name for value in found.tolist()]


def _order(panel: Panel) -> str:
    """The modes met from left to right, such as ACBA."""
    letters = _letters(panel, torch.linspace(-3.0, 5.0, 1600, dtype=torch.float64))
    return "".join(letter for letter, _ in groupby(letters))


def _width(panel: Panel) -> float:
    """How wide mode C is, measured on a fine grid."""
    e = torch.linspace(0.0, 1.0, 100_001, dtype=torch.float64)[1:]
    return sum(letter == "C" for letter in _letters(panel, e)) / len(e)


def _draw() -> Figure:
    from matplotlib.patches import Patch

    fig = style.figure(9.0, 5.2)
    grid = fig.subplots(2, 3, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, PANELS, strict=True):
        _draw_panel(axes, panel)
    for axes in grid[1]:
        axes.set_xlabel(r"violation $e_t$, in units of $\xi_{t-1}$")
    for axes in grid[:, 0]:
        axes.set_ylabel(r"$\Delta\nu$PI / $\Delta$GA")
    patches = [Patch(color=SHADES[mode], label=MEANINGS[mode]) for mode in UpdateMode]
    lines, _ = grid[0, 0].get_legend_handles_labels()
    fig.legend(handles=[*patches, *lines], loc="outside lower center", ncols=7)
    return fig


def _draw_panel(axes: Axes, panel: Panel) -> None:
    low, high, floor, ceiling = -1.5, 2.5, -4.0, 6.0
    e = torch.linspace(low, high, 2001, dtype=torch.float64)
    letters = _letters(panel, e)
    edges = [0, *(i for i in range(1, len(e)) if letters[i] != letters[i - 1]), len(e) - 1]
    for start, end in pairwise(edges):
        axes.axvspan(
            float(e[start]), float(e[end]), color=SHADES[UpdateMode[letters[start]]], linewidth=0, zorder=0
        )
    for side in (e[e < -1e-6], e[e > 1e-6]):
        axes.plot(
            side, panel.ratio(side), color=style.colour("nupi"), label=None if side[0] > 0 else r"$\nu$PI"
        )
    axes.axhline(1.0, color=style.colour("ga"), linewidth=1.2, label="gradient ascent")
    axes.axhline(1 / (1 - panel.psi), color="0.2", linestyle="--", linewidth=0.9, label=r"$1/(1-\psi)$")
    axes.axvline(panel.psi, color="0.2", linestyle=":", linewidth=1.1, label=r"$\psi$")
    axes.set(title=panel.title, xlim=(low, high), ylim=(floor, ceiling))
    caption = rf"$\psi$ = {panel.psi:.2f}" + "\n" + rf"$1/(1-\psi)$ = {1 / (1 - panel.psi):.2f}"
    axes.text(0.97, 0.05, caption, transform=axes.transAxes, ha="right", fontsize=8)
    axes.grid(visible=False)
