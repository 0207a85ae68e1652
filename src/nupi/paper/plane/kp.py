"""Trajectories on the two-dimensional problem: the effect of kp, and of nu."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from nupi.paper import style
from nupi.paper.plane.figure import AREA, draw_basins, draw_paths
from nupi.paper.plane.problem import (
    LR,
    PROBLEM,
    START,
    STEPS,
    Gains,
    Optima,
    Path,
    endings,
    optima,
    runs,
    separation,
)
from nupi.paper.runner import Claim, Run, target
from nupi.theory.spectrum import damping_ratio_of, eigenvalues

if TYPE_CHECKING:
    from collections.abc import Sequence

ASCENT = (Gains("GA, step 0.005", 0.005), Gains("GA, step 0.01", 0.01))
DAMPED = tuple(Gains(f"nuPI, kp = {kp:g}", 0.01, kp) for kp in (1.0, 3.0, 5.0))
SMOOTHED = tuple(Gains(f"nuPI, nu = {nu:g}", 0.01, 10.0, nu) for nu in (0.0, 0.5, 0.9, 0.95))
REACHED = 0.05  # the other minimum is 1.25 away


@target(
    "plane-kp",
    paper="Appendix, 2-D nonconvex problem, ablation of kp",
    about="gradient ascent and nuPI at kp 1, 3, 5 on a nonconvex problem in the plane",
    scales=("smoke", "paper"),
)
def plane_kp(run: Run) -> list[Claim]:
    """Gradient ascent misses the solution or oscillates into it; kp damps, monotonically."""
    known = optima()
    choices = [*ASCENT, *DAMPED]
    paths = runs(run, choices, 5_000 if run.scale == "smoke" else STEPS)
    small, large, *damped = paths
    colours = [*style.shades("ga", 3)[:2], *style.shades("nupi", 3)]
    run.figure(draw_paths(paths, choices, colours, known, shown=3_500))
    _record(run, choices, paths, known)

    nearest = [path.distance(known.unconstrained).min().item() for path in (small, large)]
    first = START.sub(known.unconstrained).norm().item()
    ends = [path.distance(known.constrained)[-1].item() for path in paths]
    overshoots = [path.overshoot for path in damped]
    changes = [path.sign_changes for path in damped]
    ascending, ratios = ([_damping_at_the_optimum(c, known) for c in group] for group in (ASCENT, DAMPED))
    claims = [
        Claim(
            "the optimum by two independent solvers",
            "marked, without numbers",
            f"({known.constrained[0]:.4f}, {known.constrained[1]:.4f}), apart by {known.disagreement:.0e}",
            known.disagreement < 1e-6,
        ),
        Claim(
            "gradient ascent is first drawn toward the unconstrained optimum",
            "yes",
            f"distance to it {first:.2f} at the start, least {nearest[0]:.2f} and {nearest[1]:.2f}",
            max(nearest) < 0.7 * first,
        ),
        Claim(
            "gradient ascent at 0.005 does not reach the constrained optimum",
            "does not",
            f"ends {ends[0]:.2f} from it, {small.distance(known.local)[-1]:.0e} from the local minimum; "
            f"damping ratio {ascending[0]:.3f}: it is not even stable there",
            ends[0] > 0.5 and ascending[0] < 0.0,
        ),
        Claim(
            "gradient ascent at 0.01 reaches it, with oscillations",
            "does",
            f"ends {ends[1]:.4f} from it after {large.sign_changes} sign changes; damping ratio {ascending[1]:.3f}",
            ends[1] < REACHED and large.sign_changes >= 4 and 0.0 < ascending[1] < 0.1,
        ),
        Claim(
            "nuPI reaches it at kp = 1, 3 and 5",
            "does",
            "ends " + ", ".join(f"{end:.0e}" for end in ends[2:]) + " from it",
            max(ends[2:]) < 1e-3,
        ),
        Claim(
            "kp = 1 is underdamped",
            "underdamped",
            f"overshoot {overshoots[0]:.1f}%, {changes[0]} sign changes; damping ratio {ratios[0]:.2f}",
            overshoots[0] > 10.0 and ratios[0] < 0.9,
        ),
        Claim(
            "kp = 3 is almost critical",
            "almost-critical",
            f"overshoot {overshoots[1]:.1f}%, {changes[1]} sign changes; damping ratio {ratios[1]:.3f}",
            overshoots[1] < 5.0 and 0.95 < ratios[1] < 1.05,
        ),
        Claim(
            "kp = 5 is overdamped",
            "overdamped",
            f"overshoot {overshoots[2]:.1f}%, {changes[2]} sign changes; damping ratio {ratios[2]:.2f}",
            changes[2] == 0 and ratios[2] > 1.0,
        ),
        Claim(
            "damping grows monotonically with kp",
            "monotonic",
            "overshoot "
            + " > ".join(f"{o:.1f}%" for o in (large.overshoot, *overshoots))
            + " for kp 0, 1, 3, 5",
            large.overshoot > overshoots[0] > overshoots[1] > overshoots[2]
            and large.sign_changes > changes[0] >= changes[1] >= changes[2],
        ),
    ]
    return claims if run.scale == "smoke" else [*claims, *_choice_of_start_and_step(run, known)]


def _choice_of_start_and_step(run: Run, known: Optima) -> list[Claim]:
    """Why this primal step and this start: damping ratios by step, and where gradient ascent ends by start."""
    import pandas as pd

    steps = (LR / 2, LR, 2 * LR)
    rows = [
        {
            "primal step": step,
            **{c.label: _damping_at_the_optimum(c, known, step) for c in (*ASCENT, *DAMPED)},
        }
        for step in steps
    ]
    run.table("Damping ratio at the optimum, by primal step", pd.DataFrame(rows))

    side = torch.linspace(*AREA, 41, dtype=torch.float64)
    starts = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)
    basins = {}
    for step in steps:
        small, large = (
            separation(endings(run, starts.reshape(-1, 2), gains, step, round(8.0 / step)), known.constrained)
            < REACHED
            for gains in ASCENT
        )
        basins[step] = (small.int() + 2 * large.int()).reshape(len(side), len(side))
    run.figure(draw_basins(basins, known), "figure-basins")
    half, used, twice = (int((outcome == 2).sum()) for outcome in basins.values())
    return [
        Claim(
            "this start is one of many with the paper's outcome for gradient ascent",
            "start not given",
            f"{used} of {len(side) ** 2} starts on a grid over [-2, 2]^2",
            used > len(side) ** 2 / 4,
        ),
        Claim(
            "and this primal step stands between those without it",
            "step not given",
            f"{half} starts at {steps[0]:g} and {twice} at {steps[2]:g}",
            max(half, twice) < used / 10,
        ),
    ]


@target(
    "plane-nu",
    paper="Appendix, 2-D nonconvex problem, ablation of nu",
    about="nuPI at kp = 10, ki = 0.01 under growing nu, on the same problem",
    scales=("smoke", "paper"),
)
def plane_nu(run: Run) -> list[Claim]:
    """A large nu acts as positive momentum does: the multiplier overshoots."""
    known = optima()
    paths = runs(run, SMOOTHED, 3_000 if run.scale == "smoke" else STEPS)
    run.figure(draw_paths(paths, SMOOTHED, style.shades("nupi", len(SMOOTHED)), known, shown=400))
    _record(run, SMOOTHED, paths, known)

    plain, strongest = paths[0], paths[-1]
    overshoots = [path.overshoot for path in paths]
    speeds = [path.settled_after for path in paths]
    growth = [path.multiplier[:40].abs().max().item() for path in paths]
    ends = [path.distance(known.constrained)[-1].item() for path in paths]
    return [
        Claim(
            "nu = 0.95 oscillates",
            "oscillates",
            f"{strongest.sign_changes} sign changes, overshoot {strongest.overshoot:.0f}%",
            strongest.sign_changes >= 2 and strongest.overshoot > 10.0,
        ),
        Claim(
            "nu = 0 does not",
            "a PI controller",
            f"{plain.sign_changes} sign changes, overshoot {plain.overshoot:.1f}%",
            plain.sign_changes == 0,
        ),
        Claim(
            "more nu, more overshoot, as with positive momentum",
            "qualitatively similar",
            "overshoot " + ", ".join(f"{o:.1f}%" for o in overshoots) + " for nu 0, 0.5, 0.9, 0.95",
            all(a <= b + 1e-9 for a, b in pairwise(overshoots)) and overshoots[-1] > overshoots[0],
        ),
        Claim(
            "nu > 0 shows no advantage here",
            "none",
            f"settles in {speeds[0]} steps at nu = 0, and in {', '.join(map(str, speeds[1:]))}",
            min(speeds[1:]) > 0.98 * speeds[0],
        ),
        Claim(
            "all of them reach the constrained optimum",
            "shown",
            f"within {max(ends):.0e} of it; multipliers peaked at {', '.join(f'{g:.0f}' for g in growth)}",
            max(ends) < REACHED,
        ),
    ]


def _damping_at_the_optimum(gains: Gains, known: Optima, step: float = LR) -> float:
    """The damping ratio of the slowest pair of eigenvalues of the flow, linearised at the optimum."""
    multiplier = torch.tensor([known.multiplier], dtype=torch.float64)
    phi, slopes = PROBLEM.curvature(known.constrained, multiplier), PROBLEM.slopes(known.constrained)
    return damping_ratio_of(eigenvalues(phi, slopes, gains.ki / step, gains.kp)[:2])


def _record(run: Run, choices: Sequence[Gains], paths: Sequence[Path], known: Optima) -> None:
    import pandas as pd

    frames = [
        pd.DataFrame(
            {
                "ki": gains.ki,
                "kp": gains.kp,
                "nu": gains.nu,
                "step": range(len(path.x)),
                "x1": path.x[:, 0],
                "x2": path.x[:, 1],
                "multiplier": path.multiplier,
                "violation": path.violation,
            }
        )[::10]
        for gains, path in zip(choices, paths, strict=True)
    ]
    run.results(pd.concat(frames))
    measured = [
        {
            "run": gains.label,
            "sign changes": path.sign_changes,
            "overshoot %": round(path.overshoot, 2),
            "settled after": path.settled_after,
            "final distance": path.distance(known.constrained)[-1].item(),
            "multiplier": path.multiplier[-1].item(),
        }
        for gains, path in zip(choices, paths, strict=True)
    ]
    run.table(f"The multiplier of the optimum is {known.multiplier:.4f}", pd.DataFrame(measured))
