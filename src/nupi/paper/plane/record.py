"""What a run on the two-dimensional problem leaves behind: its path in results.csv, its measures in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.paper.plane.problem import Gains, Optima, Path
    from nupi.paper.runner import TargetRun

REACHED = 0.05  # the other minimum is 1.25 away


def record(run: TargetRun, choices: Sequence[Gains], paths: Sequence[Path], known: Optima) -> None:
    """Write every tenth step of each path, and print how each one went."""
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
    show(run, f"The multiplier of the optimum is {known.multiplier:.4f}", choices, paths, known)


def show(run: TargetRun, title: str, choices: Sequence[Gains], paths: Sequence[Path], known: Optima) -> None:
    """Print how each path went."""
    import pandas as pd

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
    run.table(title, pd.DataFrame(measured))
