"""The surface of momentum methods in the space of nuPI's gains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ALPHA = 0.5
POSITIVE, NEGATIVE = "#DDCC77", "#6B7280"  # kp > 0 damps, kp < 0 excites; no method's colours
STEPS = 200
PANELS = ((-1.0, 0.6), (-1.0, 0.25))  # the ranges of beta; the second is the paper's zoom


@target(
    "sheet",
    paper="Figure of the surface of momentum methods in (nu, kp, ki)",
    about="which gains are Polyak's and Nesterov's, and which no momentum method has",
    scales=("paper",),
)
def sheet(run: TargetRun) -> list[Claim]:
    """Theorem 1 as a picture, and the gains that runs of the momentum optimizers turn out to have."""
    curves = _curves(run)
    run.results(curves)
    run.figure(_draw())

    polyak, nesterov = (curves[curves["method"] == name] for name in ("Polyak", "Nesterov"))
    moving = polyak[polyak["beta"].abs() > 1e-9]
    opposite = int((moving["fitted_kp"] * moving["beta"] < 0).sum())
    greatest = float(nesterov.loc[nesterov["beta"].abs() > 1e-9, "fitted_kp"].max())
    together = float(abs(polyak["fitted_ki"].to_numpy() - nesterov["fitted_ki"].to_numpy()).max())
    apart = float(curves["apart"].max())
    off = max(float((curves[f"fitted_{name}"] - curves[name]).abs().max()) for name in ("ki", "kp"))
    ratio, beyond = _greatest_ratio()
    return [
        Claim(
            "Polyak's kp has the sign opposite to its momentum's",
            "beta > 0: kp < 0, and the reverse",
            f"fitted to {len(moving)} runs of UnifiedMomentum, beta in (-1, 0.6]: so in {opposite}",
            opposite == len(moving),
        ),
        Claim(
            "Nesterov's kp is never positive",
            "kp <= 0",
            f"greatest kp fitted to {len(nesterov) - 1} runs with beta != 0: {greatest:.1e}",
            greatest < 0.0,
        ),
        Claim(
            "runs of both have the same ki",
            "ki = alpha / (1 - beta)",
            f"fitted to either's runs, apart by {together:.0e}",
            together < 1e-9,
        ),
        Claim(
            "every such run is a run of nuPI, with the gains of the theorem",
            "Theorem 1",
            f"multipliers apart by {apart:.0e} over {STEPS} steps, fitted gains and the theorem's by {off:.0e}",
            apart < 1e-9 and off < 1e-9,
        ),
        Claim(
            "gains with kp > ki / 2 are no momentum method's",
            "a limited surface",
            f"the greatest kp / ki over a grid of (beta, gamma) is {ratio:.3f}, and {beyond:.3f} with beta >= 0; "
            "the paper's nuPI has 12,000 (sparsity at 50%)",
            ratio < 0.5 and beyond <= 0.0,
        ),
    ]


def _curves(run: TargetRun) -> pd.DataFrame:
    """Polyak's and Nesterov's gains for alpha = 1/2 along beta: the theorem's, and those fitted to runs."""
    import pandas as pd

    rows = []
    for name, gamma in (("Polyak", 0.0), ("Nesterov", 1.0)):
        betas = torch.linspace(-0.99, 0.6, 160, dtype=torch.float64)
        ki, kp, apart = _fit(run, betas, gamma, f"runs of {name}'s method")
        for i, beta in enumerate(betas.tolist()):
            found = {"fitted_ki": float(ki[i]), "fitted_kp": float(kp[i]), "apart": float(apart[i])}
            theorem = nupi.as_nupi(ALPHA, beta, gamma)
            rows.append({"method": name, "alpha": ALPHA, "beta": beta, **theorem, **found})
    return pd.DataFrame(rows)


def _fit(
    run: TargetRun, betas: torch.Tensor, gamma: float, what: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The (ki, kp) with which NuPI at nu = beta comes closest to UnifiedMomentum, and how far off it stays.

    NuPI's multipliers are ki times those of (1, 0) plus kp times those of (0, 1), so least squares finds both.
    """
    thetas = [torch.zeros_like(betas) for _ in range(3)]
    optimizers = (
        nupi.UnifiedMomentum([thetas[0]], lr=ALPHA, beta=betas, gamma=gamma),
        nupi.NuPI([thetas[1]], ki=1.0, kp=0.0, nu=betas, init="ema", form="velocity"),
        nupi.NuPI([thetas[2]], ki=0.0, kp=1.0, nu=betas, init="ema", form="velocity"),
    )
    generator = torch.Generator().manual_seed(0)
    paths = []
    for _ in run.progress(range(STEPS), what):
        error = torch.randn(len(betas), generator=generator, dtype=torch.float64)
        for theta, optimizer in zip(thetas, optimizers, strict=True):
            theta.grad = error.clone()
            optimizer.step()
        paths.append(torch.stack(thetas, dim=-1))
    momentum, basis = torch.stack(paths, dim=1).split([1, 2], dim=-1)  # (betas, steps, 1) and (..., 2)
    gains = torch.linalg.lstsq(basis, momentum).solution
    apart = (basis @ gains - momentum).abs().amax(dim=(1, 2))
    return gains[:, 0, 0], gains[:, 1, 0], apart


def _greatest_ratio(count: int = 400) -> tuple[float, float]:
    """The greatest kp / ki of any momentum method with |beta| < 1 and gamma from Polyak's 0 to Nesterov's 1.

    The second number is that of beta >= 0 alone.
    """
    betas = torch.linspace(-1, 1, count + 2, dtype=torch.float64)[1:-1].tolist()
    found: dict[bool, float] = {True: -math.inf, False: -math.inf}
    for beta in betas:
        for gamma in torch.linspace(0, 1, 21, dtype=torch.float64).tolist():
            gains = nupi.as_nupi(ALPHA, beta, gamma)
            found[beta >= 0] = max(found[beta >= 0], gains["kp"] / gains["ki"])
    return max(found.values()), found[True]


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
