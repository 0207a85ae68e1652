"""The surface of momentum methods in the space of nuPI's gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, Run, target
from nupi.theory.momentum_map import as_momentum

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ALPHA = 0.5
POSITIVE, NEGATIVE = "#4C8FC4", "#D9734E"  # kp > 0 damps, kp < 0 excites
PANELS = ((-1.0, 0.6), (-1.0, 0.25))  # the ranges of beta; the second is the paper's zoom


@target(
    "sheet",
    paper="Figure of the surface of momentum methods in (nu, kp, ki)",
    about="which gains are Polyak's and Nesterov's, and which no momentum method has",
    scales=("paper",),
)
def sheet(run: Run) -> list[Claim]:
    """Theorem 1 as a picture, checked by running the optimizers it equates."""
    curves = _curves()
    run.results(curves)
    run.figure(_draw())

    polyak, nesterov = (curves[curves["method"] == name] for name in ("Polyak", "Nesterov"))
    moving = polyak[polyak["beta"].abs() > 1e-12]
    opposite = bool((moving["kp"] * moving["beta"] < 0).all())
    greatest = float(nesterov["kp"].max())
    together = float(abs(polyak["ki"].to_numpy() - nesterov["ki"].to_numpy()).max())
    apart = max(_difference(beta, gamma) for beta in (-0.9, -0.4, 0.3, 0.8) for gamma in (0.0, 1.0))
    found, of, damping = _share_of_momentum()
    return [
        Claim(
            "Polyak's kp has the sign opposite to its momentum's",
            "beta > 0: kp < 0, and the reverse",
            f"for all {len(moving)} values of beta in [-1, 0.6]" if opposite else "not for all",
            opposite,
        ),
        Claim("Nesterov's kp is never positive", "kp <= 0", f"greatest kp {greatest:.1e}", greatest <= 0.0),
        Claim(
            "both have the same ki", "ki = alpha / (1 - beta)", f"apart by {together:.0e}", together < 1e-12
        ),
        Claim(
            "nuPI with these gains is the momentum method",
            "Theorem 1",
            f"multipliers of the two optimizers apart by {apart:.0e} over 200 steps",
            apart < 1e-9,
        ),
        Claim(
            "most gains are no momentum method's",
            "a limited surface",
            f"of {of} random gains {found} are Polyak's or Nesterov's; with nu, kp > 0 {damping} are any's",
            found == 0 and damping == 0,
        ),
    ]


def _curves() -> pd.DataFrame:
    """Polyak's and Nesterov's gains for alpha = 1/2 along beta."""
    import pandas as pd

    rows = []
    for name, gamma in (("Polyak", 0.0), ("Nesterov", 1.0)):
        for beta in torch.linspace(-1.0, 0.6, 161, dtype=torch.float64).tolist():
            gains = nupi.as_nupi(ALPHA, beta, gamma)
            rows.append({"method": name, "alpha": ALPHA, "beta": beta, **gains})
    return pd.DataFrame(rows)


def _difference(beta: float, gamma: float, steps: int = 200) -> float:
    """How far UnifiedMomentum and NuPI with Theorem 1's gains get from one another on the same errors."""
    thetas = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    pair = (
        nupi.UnifiedMomentum([thetas[0]], lr=ALPHA, beta=beta, gamma=gamma),
        nupi.NuPI([thetas[1]], **nupi.as_nupi(ALPHA, beta, gamma), init="ema"),
    )
    generator = torch.Generator().manual_seed(0)
    apart = 0.0
    for _ in range(steps):
        error = torch.randn(4, generator=generator, dtype=torch.float64)
        for theta, optimizer in zip(thetas, pair, strict=True):
            theta.grad = error.clone()
            optimizer.step()
        apart = max(apart, float((thetas[0] - thetas[1]).abs().max()))
    return apart


def _share_of_momentum(count: int = 10_000) -> tuple[int, int, int]:
    """Of random gains: how many are Polyak's or Nesterov's, of how many; and any's with kp, nu > 0."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    low, high = torch.tensor([0.0, -2.0, -1.0]), torch.tensor([2.0, 2.0, 0.9])  # ki, kp, nu
    named = damping = 0
    for ki, kp, nu in (low + draws * (high - low)).tolist():
        method = as_momentum(ki, kp, nu)
        if method is not None:
            named += method.name in ("Polyak", "Nesterov")
            damping += nu > 0 and kp > 0
    return named, count, damping


def _draw() -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    fig = style.figure(9.0, 4.7)
    fig.set_layout_engine("none")
    for i, (low, high) in enumerate(PANELS):
        axes: Any = fig.add_axes((0.03 + 0.48 * i, 0.12, 0.47, 0.84), projection="3d")
        _draw_panel(axes, low, high)
        axes.set_title(rf"$\beta$ from {low:g} to {high:g}", y=1.0)
    handles = [
        Line2D(
            [], [], color=style.colour(name), linewidth=2.2, label=rf"{style.LABELS[name]}, $\alpha = 1/2$"
        )
        for name in ("polyak", "nesterov")
    ]
    handles += [
        Line2D([], [], color="0.35", linewidth=0.8, label=r"Polyak, $\alpha$ = 0.25, 0.75, 1"),
        Line2D([], [], color="black", linestyle="--", linewidth=1.2, label=r"$\beta$ = -1, 0.25 (in both)"),
    ]
    patches = [
        Patch(color=POSITIVE, alpha=0.45, label=r"Polyak, $\kappa_p > 0$"),
        Patch(color=NEGATIVE, alpha=0.45, label=r"Polyak, $\kappa_p < 0$"),
    ]
    fig.legend(handles=[*handles, *patches], loc="lower center", ncols=3)
    return fig


def _draw_panel(axes: Any, low: float, high: float) -> None:
    """Polyak's surface over alpha in (0, 1], its curves, and Nesterov's for alpha = 1/2."""
    from matplotlib.ticker import MaxNLocator

    for colour, start, end in ((POSITIVE, low, 0.0), (NEGATIVE, 0.0, high)):
        alphas, betas = torch.meshgrid(_between(0.02, 1.0, 25), _between(start, end, 60), indexing="ij")
        kp, ki = _gains(alphas, betas, gamma=0.0)
        axes.plot_surface(
            betas.numpy(), kp.numpy(), ki.numpy(), color=colour, alpha=0.45, linewidth=0, shade=False
        )
    beta = _between(low, high, 200)
    for alpha in (0.25, 0.75, 1.0):
        axes.plot(beta, *_gains(torch.tensor(alpha), beta, gamma=0.0), color="0.35", linewidth=0.8)
    for name, gamma in (("nesterov", 1.0), ("polyak", 0.0)):
        curve = _gains(torch.tensor(ALPHA), beta, gamma)
        axes.plot(beta, *curve, color=style.colour(name), linewidth=2.2, zorder=5)
    alpha_range = _between(0.02, 1.0, 20)
    for edge in (-1.0, 0.25):
        beta_edge = torch.full_like(alpha_range, edge)
        edges = _gains(alpha_range, beta_edge, gamma=0.0)
        axes.plot(beta_edge, *edges, color="black", linestyle="--", linewidth=1.2)
    axes.set_xlabel(r"$\nu = \beta$")
    axes.set_ylabel(r"$\kappa_p$")
    axes.set_zlabel(r"$\kappa_i$")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_box_aspect((1.15, 1.0, 0.9), zoom=0.98)
    axes.view_init(elev=24, azim=-128)


def _gains(alpha: torch.Tensor, beta: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Theorem 1's (kp, ki), point by point."""
    shape = (alpha + beta).shape
    flat = zip(alpha.expand(shape).flatten().tolist(), beta.expand(shape).flatten().tolist(), strict=True)
    found = [nupi.as_nupi(a, b, gamma) for a, b in flat]
    kp, ki = ([gains[name] for gains in found] for name in ("kp", "ki"))
    return torch.tensor(kp).reshape(shape), torch.tensor(ki).reshape(shape)


def _between(low: float, high: float, count: int) -> torch.Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)
