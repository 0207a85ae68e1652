"""Target `plane-kp`: what kp does to the trajectories on the two-dimensional problem."""

from __future__ import annotations

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
    endings,
    optima,
    runs,
    separation,
)
from nupi.paper.plane.record import REACHED, record, show
from nupi.paper.runner import Claim, TargetRun, target
from nupi.theory.spectrum import damping_ratio_of, eigenvalues

ASCENT = (Gains("GA, step 0.005", 0.005), Gains("GA, step 0.01", 0.01))
DAMPED = tuple(Gains(f"nuPI, kp = {kp:g}", 0.01, kp) for kp in (1.0, 3.0, 5.0))


@target(
    "plane-kp",
    paper="Appendix, 2-D nonconvex problem, ablation of kp",
    about="gradient ascent and nuPI at kp 1, 3, 5 on a nonconvex problem in the plane",
    scales=("smoke", "paper"),
)
def plane_kp(run: TargetRun) -> list[Claim]:
    """Gradient ascent misses the solution or oscillates into it; kp damps, monotonically."""
    known = optima()
    choices = [*ASCENT, *DAMPED]
    paths = runs(run, choices, 5_000 if run.scale == "smoke" else STEPS)
    small, large, *damped = paths
    colours = [*style.shades("ga", 3)[:2], *style.shades("nupi", 3)]
    run.figure(draw_paths(paths, choices, colours, known, shown=3_500))
    record(run, choices, paths, known)
    if run.scale == "paper":
        gentle = runs(run, DAMPED, init="bumpless")
        show(run, 'nuPI from the start "bumpless" instead of "zero"', DAMPED, gentle, known)

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


def _choice_of_start_and_step(run: TargetRun, known: Optima) -> list[Claim]:
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


def _damping_at_the_optimum(gains: Gains, known: Optima, step: float = LR) -> float:
    """The damping ratio of the slowest pair of eigenvalues of the flow, linearised at the optimum."""
    multiplier = torch.tensor([known.multiplier], dtype=torch.float64)
    phi, slopes = PROBLEM.curvature(known.constrained, multiplier), PROBLEM.slopes(known.constrained)
    return damping_ratio_of(eigenvalues(phi, slopes, gains.ki / step, gains.kp)[:2])
