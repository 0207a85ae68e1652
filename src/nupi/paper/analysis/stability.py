"""The same program in discrete time: where in (ki, kp) the real optimizers converge, and where they must not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun
from nupi.theory.discrete import Scheme, stability_region
from nupi.theory.spectrum import critical_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import ContourSet
    from matplotlib.figure import Figure

H, A, LR = 1.0, -1.0, 0.1
KI, KP = (0.01, 30.0), (-6.0, 22.0)  # ki on a logarithmic scale
SCHEMES: tuple[Scheme, ...] = ("alternating", "simultaneous")
NEAR = 0.01  # this close to a radius of 1 a short run cannot tell


def stability(run: TargetRun) -> list[Claim]:
    """Draw the stability regions, run the optimizers on a grid over them, and compare."""
    ki, kp = _grid(12, 13)
    regions = {scheme: stability_region(H, A, lr=LR, ki=ki, kp=kp, scheme=scheme) for scheme in SCHEMES}
    shrank = {scheme: _run(run, ki, kp, scheme) for scheme in SCHEMES}
    clear = {scheme: (radius - 1).abs() > NEAR for scheme, radius in regions.items()}
    run.figure(_draw(ki, kp, shrank, clear), "figure-discrete")
    agree = sum(int(((regions[s] < 1) == shrank[s])[clear[s]].sum()) for s in SCHEMES)
    total = sum(int(clear[s].sum()) for s in SCHEMES)
    fine = [stability_region(H, A, lr=LR, ki=FINE[0], kp=FINE[1], scheme=scheme) for scheme in SCHEMES]
    sizes = [float((radius < 1).double().mean()) for radius in fine]
    return [
        Claim(
            "in discrete time the optimizers converge where the spectral radius is below 1",
            "continuous time alone",
            f"{agree} of {total} runs with a radius farther than {NEAR:g} from 1, in both schemes",
            agree == total,
        ),
        Claim(
            "alternating updates are stable for more gains than simultaneous ones",
            "their advantage, after earlier work",
            f"{100 * sizes[0]:.0f}% and {100 * sizes[1]:.0f}% of the area drawn",
            sizes[0] > sizes[1],
        ),
    ]


def _grid(ki: int, kp: int) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = (math.log10(end) for end in KI)
    return torch.logspace(low, high, ki, dtype=torch.float64), torch.linspace(*KP, kp, dtype=torch.float64)


FINE = _grid(160, 160)


def _run(
    run: TargetRun, ki: torch.Tensor, kp: torch.Tensor, scheme: Scheme, steps: int = 300
) -> torch.Tensor:
    """Whether SGD and NuPI shrink (x, mu) over the last two thirds of a run, for every pair of gains at once."""
    gains = torch.cartesian_prod(ki, kp)
    x = torch.ones(len(gains), dtype=torch.float64, requires_grad=True)
    lagrangian = nupi.Lagrangian({"line": nupi.Equality(len(gains))}).double()
    primal = torch.optim.SGD([x], lr=LR)
    dual = nupi.NuPI(lagrangian.parameters(), *gains.T, init="ema", form="velocity")
    sizes = []
    for _ in run.progress(range(steps), f"{scheme} updates"):
        sizes.append((x.detach().square() + lagrangian.multipliers["line"].square()).sqrt())
        violations = {"line": A * x}
        if scheme == "alternating":
            lagrangian.ascend(dual, violations)
        lagrangian(0.5 * H * x.square().sum(), violations).backward()
        if scheme == "simultaneous":
            lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()
    # The most of a window at both ends, so that the phase of an oscillation has no say.
    first, last = torch.stack(sizes[100:150]).amax(dim=0), torch.stack(sizes[-50:]).amax(dim=0)
    return (last < first).reshape(len(ki), len(kp))


def _draw(
    ki: torch.Tensor,
    kp: torch.Tensor,
    shrank: dict[Scheme, torch.Tensor],
    clear: dict[Scheme, torch.Tensor],
) -> Figure:
    fig = style.figure(9.0, 3.9)
    for axes, scheme in zip(fig.subplots(1, 2, sharey=True), SCHEMES, strict=True):
        drawn = _draw_region(axes, scheme)
        dots = (
            (clear[scheme] & shrank[scheme], "#F0E442", "optimizers converge"),
            (clear[scheme] & ~shrank[scheme], "white", "optimizers diverge"),
            (~clear[scheme], "0.6", f"undecided: radius within {NEAR:g} of 1"),
        )
        for those, face, label in dots:
            at = those.nonzero()
            axes.plot(
                ki[at[:, 0]], kp[at[:, 1]], "o", markersize=4, color=face, markeredgecolor="black", label=label,
                markeredgewidth=0.7,
            )  # fmt: skip
        axes.set(title=f"{scheme} updates, primal step {LR:g}", xlabel=r"$\kappa_i$", xscale="log")
    fig.axes[0].set_ylabel(r"$\kappa_p$")
    fig.colorbar(drawn, ax=fig.axes, label="spectral radius: the factor a step")
    fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


def _draw_region(axes: Axes, scheme: Scheme) -> ContourSet:
    ki, kp = FINE
    radius = stability_region(H, A, lr=LR, ki=ki, kp=kp, scheme=scheme).T
    levels = [0.0, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0]
    colours = style.shades("nupi", len(levels) + 1)[-3::-1]  # dark is fast; without the darkest, for the dots
    drawn = axes.contourf(ki, kp, radius, levels=levels, colors=colours)
    axes.contour(ki, kp, radius, levels=[1.0], colors="black", linewidths=1.6)
    axes.plot([], [], color="black", linewidth=1.6, label="edge of stability")
    critical = [critical_points(H, A, gain / LR)[1] for gain in ki.tolist()]
    axes.plot(
        ki, critical, color="#C2187A", linestyle="--", linewidth=1.4, label="critical damping of the flow"
    )
    axes.set_ylim(*KP)
    axes.grid(visible=False)
    return drawn
