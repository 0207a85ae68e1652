"""What `SelfTuned` warns of: `steps` that are too few or too many, and measurements that cannot succeed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nupi.optim.measuring import TRIES
from nupi.optim.warning import warn_user

if TYPE_CHECKING:
    from collections.abc import Sequence

APART = 100.0  # times as large: what evaluate returns is then not in the unit of what the loop has


def warn_of_length(steps: float, run: float) -> None:
    """Warn if `steps` are more than the dual steps of the whole run."""
    if steps > run:
        warn_user(
            f"steps={steps:g} is longer than the run of {run:g} dual steps, so the constraints may not be met "
            f"in it. Give steps={max(1, int(run) // 4)}, a quarter of the run"
        )


def warn_of_speed(top: float, steps: float) -> bool:
    """Warn if the model's optimizer cannot move the violations in `steps`; whether it did.

    Args:
        top: the largest share of a violation that the optimizer can remove in a dual step; 0 if it is not limited.
        steps: those that were asked for.
    """
    if not 0.0 < 2 * top * steps < 1.0:
        return False
    enough = math.ceil(1.0 / top)
    warn_user(
        f"steps={steps:g} is shorter than the model's optimizer can follow: at its learning rate the violations need "
        f"about {enough} dual steps. Give steps={enough}, or a larger learning rate"
    )
    return True


def warn_of_unknown(names: Sequence[str], measured_on: str) -> None:
    """Warn of constraints that have no response after many measurements: their multipliers do not move."""
    warn_user(
        f"{TRIES} measurements found no response of {', '.join(map(repr, names))}, so these multipliers stay where "
        f"they are. Look at {measured_on}: each violation needs a finite gradient in parameters that primal trains, "
        "and the loss needs one, too"
    )


def warn_of_no_primal() -> None:
    """Warn that the gains are those of a measurement, and stay: a copy or a checkpoint has no primal."""
    warn_user(
        "this SelfTuned cannot measure any more, because it has no primal: it is a copy, or it was built without "
        "primal and has loaded a checkpoint. Its gains stay as they are. Call dual.watch(primal), with the optimizer "
        "of the model, to measure again"
    )


def warn_of_no_loss(steps: int) -> None:
    """Warn that the Lagrangian has not been called, so that no loss could be seen."""
    warn_user(
        f"primal has taken {steps} steps, and lagrangian(loss, violations) has not been called with a gradient, so "
        "nothing was measured, and constraints have no effect. Call lagrangian(loss, violations).backward() in place "
        "of loss.backward()"
    )


def warn_of_rest(shown: int, kinds: Sequence[str]) -> None:
    """Warn that `primal` is not the optimizer that moves the model."""
    warn_user(
        f"lagrangian(loss, violations) has been called {shown} times, and primal ({', '.join(kinds)}) has not taken a "
        "step. Is it the optimizer that trains the model? If the model has a new one, call dual.watch(it)"
    )


def warn_of_units(what: str, evaluated: float, given: float) -> None:
    """Warn if a size that evaluate returned cannot be in the unit of what the loop gave."""
    small, large = sorted((abs(evaluated), abs(given)))
    if small > 0.0 and large > APART * small:
        warn_user(
            f"evaluate returned {what} of {evaluated:.3g}, where the training loop has {given:.3g}. Gains follow from "
            "what evaluate returns, so both have to be in one unit: a mean and not a sum, a share and not percent"
        )
