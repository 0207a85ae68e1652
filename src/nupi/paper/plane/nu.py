"""Target `plane-nu`: what nu does to the trajectories on the two-dimensional problem."""

from __future__ import annotations

from itertools import pairwise

from nupi.paper import style
from nupi.paper.plane.figure import draw_paths
from nupi.paper.plane.problem import STEPS, Gains, optima, runs
from nupi.paper.plane.record import REACHED, record
from nupi.paper.runner import Claim, TargetRun, target

SMOOTHED = tuple(Gains(f"nuPI, nu = {nu:g}", 0.01, 10.0, nu) for nu in (0.0, 0.5, 0.9, 0.95))


@target(
    "plane-nu",
    paper="Appendix, 2-D nonconvex problem, ablation of nu",
    about="nuPI at kp = 10, ki = 0.01 under growing nu, on the same problem",
    scales=("smoke", "paper"),
)
def plane_nu(run: TargetRun) -> list[Claim]:
    """A large nu acts as positive momentum does: the multiplier overshoots."""
    known = optima()
    paths = runs(run, SMOOTHED, 3_000 if run.scale == "smoke" else STEPS)
    run.figure(draw_paths(paths, SMOOTHED, style.shades("nupi", len(SMOOTHED)), known, shown=400))
    record(run, SMOOTHED, paths, known)

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
            "nu > 0 shows no advantage here: it overshoots more and settles no sooner, by 2% or more",
            "none",
            f"overshoot {overshoots[0]:.1f}% at nu = 0 against {overshoots[-1]:.1f}% at 0.95; settles in {speeds[0]} "
            f"steps at nu = 0, and in {', '.join(map(str, speeds[1:]))}",
            overshoots[-1] > overshoots[0] + 10.0 and min(speeds[1:]) > 0.98 * speeds[0],
        ),
        Claim(
            "all of them reach the constrained optimum",
            "shown",
            f"within {max(ends):.0e} of it; multipliers peaked at {', '.join(f'{g:.0f}' for g in growth)}",
            max(ends) < REACHED,
        ),
    ]
