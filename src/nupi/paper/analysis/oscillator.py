"""Target `oscillator`: the theorem that the flow of nuPI is an oscillator, on a problem where all its terms count.

    flow          x' = -grad_x L(x, mu),   mu' = ki h + kp h'
    oscillator    x'' = -Phi x' - J mu',   mu'' = ki J^T x' + kp (J^T x'' + Xi)

The two-dimensional problem is nonconvex and its constraint is curved, so that Xi is not zero and Phi moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.paper import style
from nupi.paper.plane.problem import LR, PROBLEM, START
from nupi.paper.runner import Claim, TargetRun, target
from nupi.theory.flow import Trajectory, integrate, oscillator, oscillator_start, solve_flow, solve_oscillator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KI, KPS = 0.01 / LR, (0.0, 1.0, 3.0)
ENDS = {"smoke": 0.1, "paper": 0.6}  # the last time
TOLERANCE = 1e-7
EQUAL = 1e-5
KP = 3.0  # of the printed version: at kp = 1 a missing kp cannot be seen


@target(
    "oscillator",
    paper="Theorem of the appendix: GD with nuPI ascent as a second-order system",
    about="the flow and the oscillator on the two-dimensional problem, and the theorem as it is printed",
    scales=("smoke", "paper"),
)
def oscillator_theorem(run: TargetRun) -> list[Claim]:
    """Integrate both systems from the same start at three kp, and the printed one at one of them."""
    import pandas as pd

    times = torch.linspace(0.0, ENDS[run.scale], 121, dtype=torch.float64)
    flows, oscillators = {}, {}
    for kp in run.progress(KPS, "integrating"):
        options = {"ki": KI, "kp": kp, "times": times, "tolerance": TOLERANCE}
        flows[kp] = solve_flow(PROBLEM, START, **options)  # type: ignore[arg-type]
        oscillators[kp] = solve_oscillator(PROBLEM, START, **options)  # type: ignore[arg-type]
    gaps = {kp: _apart(flows[kp], oscillators[kp]) for kp in KPS}
    printed = _printed(KP, times)
    start, block = (_apart(flows[KP], path) for path in printed.values())
    frames = [
        pd.DataFrame(
            {
                "kp": kp,
                "time": times,
                "x1": flows[kp].x[:, 0],
                "x2": flows[kp].x[:, 1],
                "multiplier": flows[kp].mu[:, 0],
                "multiplier of the oscillator": oscillators[kp].mu[:, 0],
            }
        )
        for kp in KPS
    ]
    run.results(pd.concat(frames))
    run.figure(_draw(flows, oscillators, printed))
    return [
        *(
            Claim(
                f"at kp = {kp:g} the oscillator follows the flow",
                "the same dynamics",
                f"apart by {gap:.0e} up to t = {times[-1]:g}",
                gap < EQUAL,
            )
            for kp, gap in gaps.items()
        ),
        Claim(
            "with the initial condition as printed (no kp in mu'(0)) it does not",
            "mu'(0) = ki h + J^T x'(0)",
            f"apart by {start:.2g} at kp = {KP:g}",
            start > 100 * EQUAL,
        ),
        Claim(
            "nor with the last block as printed (beta, a symbol of nothing; here 1)",
            "-beta Xi",
            f"apart by {block:.2g} at kp = {KP:g}",
            block > 100 * EQUAL,
        ),
    ]


def _apart(one: Trajectory, other: Trajectory) -> float:
    gaps = torch.cat([one.x - other.x, one.mu - other.mu], dim=1)
    return float(gaps.abs().nan_to_num(nan=torch.inf).max())


def _printed(kp: float, times: torch.Tensor) -> dict[str, Trajectory]:
    """The system with each of the theorem's two slips, by name."""
    nothing = torch.zeros(1, dtype=torch.float64)
    right, start = oscillator(PROBLEM, KI, kp, 2), oscillator_start(PROBLEM, KI, kp, START, nothing)
    without_kp = start.clone()
    without_kp[5:] = KI * PROBLEM.h(START) + PROBLEM.slopes(START) @ start[3:5]

    def with_beta(state: torch.Tensor) -> torch.Tensor:
        out = right(state)
        return torch.cat([out[:5], out[5:] + (1.0 - kp) * PROBLEM.bending(state[:2], state[3:5])])

    return {
        "initial condition as printed": _path(
            integrate(right, without_kp, times, tolerance=TOLERANCE), times
        ),
        "last block as printed": _path(integrate(with_beta, start, times, tolerance=TOLERANCE), times),
    }


def _path(states: torch.Tensor, times: torch.Tensor) -> Trajectory:
    x = states[:, :2]
    return Trajectory(times, x, states[:, 2:3], torch.stack([PROBLEM.h(each) for each in x]))


def _draw(
    flows: dict[float, Trajectory], oscillators: dict[float, Trajectory], printed: dict[str, Trajectory]
) -> Figure:
    fig = style.figure(8.4, 3.2)
    left, right = fig.subplots(1, 2, sharey=True)
    times = flows[KP].times
    for (kp, flow), shade in zip(flows.items(), style.shades("nupi", len(flows)), strict=True):
        left.plot(times, flow.mu[:, 0], color=shade, label=rf"flow, $\kappa_p$ = {kp:g}")
        left.plot(times[::6], oscillators[kp].mu[::6, 0], "o", color=shade, markersize=3)
    left.plot([], [], "o", color="0.4", markersize=3, label="oscillator")
    right.plot(times, flows[KP].mu[:, 0], color=style.colour("nupi"), label=rf"flow, $\kappa_p$ = {KP:g}")
    for (name, path), dashes in zip(printed.items(), ("--", ":"), strict=True):
        right.plot(times, path.mu[:, 0], color="0.3", linestyle=dashes, label=name)
    left.set_ylabel(r"multiplier $\mu$")
    for axes in (left, right):
        axes.set_xlabel("time")
        axes.legend(fontsize=7)
    return fig
