"""The eigenvalues of one variable and one constraint against kp: from divergence to overdamping."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import torch

from nupi.paper import style
from nupi.paper.analysis.stability import stability
from nupi.paper.runner import Claim, TargetRun, target
from nupi.theory.spectrum import Regime, critical_points, eigenvalues, regime, system_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

H, A, KI = 1.0, -1.0, 1.0
LOW, HIGH = -5.0, 4.0
SHADES = {
    Regime.DIVERGENT: "#F2B8B0",
    Regime.DIVERGENT_OSCILLATION: "#FBE3DF",
    Regime.UNDERDAMPED: "#F5E9A9",
    Regime.OVERDAMPED: "#C9DCF3",
}


@target(
    "spectrum",
    paper="Figure of eigenvalues against kp, one variable and one constraint",
    about="eigenvalues for h = 1, a = -1, ki = 1: four regimes and two critical points",
    scales=("paper",),
)
def spectrum(run: TargetRun) -> list[Claim]:
    """The regimes and critical points, found from the numbers and compared with the closed form."""
    import pandas as pd

    grid = torch.linspace(LOW, HIGH, 1801, dtype=torch.float64).tolist()
    values = torch.stack([_sorted(kp) for kp in run.progress(grid, "eigenvalues")])
    names = [regime(H, A, KI, kp) for kp in run.progress(grid, "regimes")]
    run.results(
        pd.DataFrame(
            {
                "kp": grid,
                "real_1": values[:, 0].real,
                "imaginary_1": values[:, 0].imag,
                "real_2": values[:, 1].real,
                "imaginary_2": values[:, 1].imag,
                "regime": [name.value for name in names],
            }
        )
    )
    run.figure(_draw(grid, values))

    found = _merging_points()
    closed = critical_points(H, A, KI)
    at = [eigenvalues(H, A, KI, kp).real for kp in found]
    wide = [name for name, _ in groupby(names) if name in SHADES]
    edge = _divergence_edge()
    converging = [kp for kp, value in zip(grid, values, strict=True) if value.real.max() < -1e-9]
    return [
        Claim(
            "the eigenvalues coincide at kp = -3 and at kp = 1",
            "(-h -+ 2|a| sqrt(ki)) / a^2",
            f"{found[0]:.10f} and {found[1]:.10f}",
            abs(found[0] + 3.0) < 1e-9 and abs(found[1] - 1.0) < 1e-9,
        ),
        Claim(
            "the closed form gives the same",
            "-3 and 1",
            f"{closed[0]:g} and {closed[1]:g}",
            max(abs(a - b) for a, b in zip(found, closed, strict=True)) < 1e-9,
        ),
        Claim(
            "there they are +|a| sqrt(ki) and -|a| sqrt(ki)",
            "+1 and -1 (corrected: |a|, not a)",
            f"{at[0].mean():+.6f} and {at[1].mean():+.6f}",
            bool((at[0] - 1).abs().max() < 1e-6) and bool((at[1] + 1).abs().max() < 1e-6),
        ),
        Claim(
            "four regimes in this order",
            "divergent, with oscillation, underdamped, overdamped",
            ", ".join(name.value for name in wide),
            wide == list(SHADES),
        ),
        Claim(
            "all divergent systems have a negative kp",
            "kp < 0",
            f"divergent below kp = {edge:.6f}",
            edge < 0.0 and abs(edge + H / A**2) < 1e-6,
        ),
        Claim(
            "some negative kp converge",
            "of small magnitude",
            f"the least that does is {min(converging):.3f}",
            min(converging) < 0.0,
        ),
        Claim(
            "critical damping needs a positive kp, which gradient ascent has not",
            "kp* > 0",
            f"kp* = {found[1]:.3f}; kp = 0 is {regime(H, A, KI, 0.0).value}",
            found[1] > 0.0 and regime(H, A, KI, 0.0) is Regime.UNDERDAMPED,
        ),
        Claim(
            "of the two, only the positive one converges",
            "kp = 1",
            ", ".join(f"{regime(H, A, KI, kp).value} at {kp:g}" for kp in closed),
            regime(H, A, KI, closed[1]) is Regime.CRITICALLY_DAMPED and bool((at[0] > 0).all()),
        ),
        *stability(run),
    ]


def _sorted(kp: float) -> torch.Tensor:
    """Both eigenvalues: slower decay first, or the upper half of a conjugate pair."""
    values = eigenvalues(H, A, KI, kp)
    return values if values[0].imag >= 0 else values.flip(0)


def _discriminant(kp: float) -> float:
    """trace^2 - 4 det of U as built: zero where the two eigenvalues are one."""
    u = system_matrix(H, A, KI, kp)
    return float(u.trace() ** 2 - 4 * torch.linalg.det(u))


def _merging_points() -> tuple[float, float]:
    """Where the discriminant changes sign, by Brent's method on brackets that a coarse scan finds."""
    from scipy.optimize import brentq

    coarse = [LOW + 0.37 * i for i in range(26)]
    brackets = [(a, b) for a, b in pairwise(coarse) if _discriminant(a) * _discriminant(b) < 0]
    low, high = (float(brentq(_discriminant, a, b, xtol=1e-14)) for a, b in brackets)
    return low, high


def _divergence_edge() -> float:
    """Where the greatest real part changes sign."""
    from scipy.optimize import brentq

    return float(brentq(lambda kp: float(eigenvalues(H, A, KI, kp).real.max()), -2.5, 0.5, xtol=1e-12))


def _draw(grid: list[float], values: torch.Tensor) -> Figure:
    fig = style.figure(7.2, 4.8)
    real, imaginary = fig.subplots(2, 1, sharex=True, height_ratios=(1.6, 1.0))
    growing, damped = critical_points(H, A, KI)
    for axes, part in ((real, values.real), (imaginary, values.imag)):
        _shade(axes, growing, damped)
        for i, colour in ((0, "black"), (1, "#5B3A8C")):
            axes.plot(grid, part[:, i], color=colour, linestyle=("-", "--")[i], label=rf"$\lambda_{i + 1}$")
        axes.axhline(0.0, color="0.4", linewidth=0.8)
        axes.axvline(0.0, color=style.colour("ga"), linewidth=1.0, label=r"gradient ascent, $\kappa_p = 0$")
        axes.grid(visible=False)
    marker = {"color": "#C2187A", "markeredgecolor": "black", "linestyle": "none", "zorder": 5}
    level = abs(A) * KI**0.5
    real.plot(damped, -level, "*", markersize=14, label=r"critical damping, $\kappa_p = 1$", **marker)
    real.plot(growing, level, "X", markersize=9, label=r"equal growth, $\kappa_p = -3$", **marker)
    names = ("divergent", "divergent,\noscillating", "under-\ndamped", "overdamped")
    for name, middle in zip(names, ((LOW - 3) / 2, -2.0, -0.5, (1 + HIGH) / 2), strict=True):
        real.text(middle, 4.2, name, ha="center", va="top", fontsize=8)
    real.set(ylabel=r"Re $\lambda$", xlim=(LOW, HIGH), ylim=(-5.0, 4.5))
    imaginary.set(ylabel=r"Im $\lambda$", xlabel=r"$\kappa_p$")
    fig.legend(*real.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


def _shade(axes: Axes, growing: float, damped: float) -> None:
    edges = (LOW, growing, -H / A**2, damped, HIGH)
    for (start, end), colour in zip(pairwise(edges), SHADES.values(), strict=True):
        axes.axvspan(start, end, color=colour, linewidth=0, zorder=0)
