"""Advice for each kind of finding: which gain to change, and to what value if theory gives one.

Near the optimum a constraint and its multiplier are the oscillator of `nupi.theory.spectrum`, in units of steps:
lambda^2 + (h + kp b) lambda + b ki = 0. So the natural frequency w and the damping ratio z of a swing give
b = w^2 / ki and h = 2 z w - kp b.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nupi.monitor.rules import Answer, Case
    from nupi.monitor.shape import Jitter, Swing

_FASTEST = 0.35  # radians per step: for a faster swing, kp b would be too large for discrete steps
_SETTLE = math.log(50.0)


def short(value: float) -> str:
    """The number with three significant digits."""
    return f"{value:.3g}"


_LONGER = "Give SelfTuned twice the steps, so that the multiplier moves half as fast"
_FOR_SELF_TUNED = {
    "oscillating": f"{_LONGER}, or lower the learning rate of the model",
    "diverging": f"{_LONGER}, or lower the learning rate of the model",
    "overshoot": _LONGER,
    "slow": "Train longer, or give SelfTuned fewer steps, at most a quarter of the run; if the violation still stays, "
    "it may be infeasible",
    "noisy": "Average the violation over more samples: a larger batch, or nupi.Averaged",
}


def for_self_tuned(kind: str, otherwise: str) -> str:
    """The advice for `SelfTuned`, where nobody sets ki, kp and nu: its steps, the model's learning rate, the batch."""
    return _FOR_SELF_TUNED.get(kind, otherwise)


def against_rest(case: Case) -> str:
    """Where to look if a violated constraint has a multiplier that does not move."""
    if case.self_tuned and case.ki > 0.0:
        return "SelfTuned has many steps, so its gains are small: give it fewer steps, at most a quarter of the run"
    if case.self_tuned:
        return (
            "See dual.gains(): a response of 0 means that no measurement has found a gradient. Check that primal is "
            "the optimizer that trains the model, that the loop calls lagrangian(loss, violations).backward(), and "
            "that the loss and the violations, also those of evaluate, have a gradient in the parameters of primal"
        )
    return (
        f"Check that ascend gets this violation, and that the dual optimizer has a {case.step_size} above 0"
    )


def against_swing(case: Case, swing: Swing) -> str:
    """The kp of critical damping; and a smaller ki if the swing is too fast for any kp."""
    if not case.ki > 0.0:
        return (
            "Lower the step size of the dual optimizer, or use nupi.NuPI with kp > 0, which damps the swing"
        )
    frequency = swing.frequency
    ki, kp = critical_gains(case.ki, case.kp, frequency, swing.damping)
    if case.plain:
        return _instead(case.plain, ki, kp)
    change = f"kp is {short(case.kp)}: raise it to about {short(kp)}"
    if ki < case.ki:
        change = f"ki is {short(case.ki)}: lower it to about {short(ki)}"
        change += f", with kp about {short(kp)} (now {short(case.kp)})"
    return change[0].upper() + change[1:]


def _instead(plain: str, ki: float, kp: float) -> str:
    """The advice for an optimizer that has no kp."""
    return f"Use nupi.NuPI in place of {plain}, with ki about {short(ki)} and kp about {short(kp)}"


def critical_gains(ki: float, kp: float, frequency: float, damping: float) -> tuple[float, float]:
    """The gains (ki, kp) that damp a swing critically. Ki stays, unless the swing is too fast for any kp."""
    from nupi.theory.spectrum import critical_kp

    b = frequency**2 / ki
    h = 2.0 * damping * frequency - kp * b
    slower = ki * min(1.0, (_FASTEST / frequency) ** 2)
    return slower, max(0.0, critical_kp(h, math.sqrt(b), slower))


def against_divergence(case: Case, swing: Swing | None) -> str:
    """Smaller gains; computed by theory if the violation swings."""
    if swing is not None and case.ki > 0.0:
        ki, kp = critical_gains(case.ki, case.kp, swing.frequency, swing.damping)
        if case.plain:
            return _instead(case.plain, min(ki, case.ki / 2), kp)
        less = f"Set ki to about {short(min(ki, case.ki / 2))} (now {short(case.ki)})"
        return f"{less} and kp to about {short(kp)} (now {short(case.kp)})"
    if case.ki > 0.0:
        too = f" and kp from {short(case.kp)} to {short(case.kp / 10)}" if case.kp > 0.0 else ""
        less = f"Lower {case.step_size} from {short(case.ki)} to {short(case.ki / 10)}{too}"
        return f"{less}; if it still grows, lower the step size of the model"
    return "Lower the step size of the dual optimizer tenfold; if it still grows, that of the model"


def against_infeasibility(case: Case, answer: Answer) -> str:
    """Check the sign if the violation grows with its multiplier; else loosen the target, or check the constraint."""
    if answer.best < 0.0 and answer.last < 0.0:
        return (
            "The violation has grown with its multiplier: check its sign (positive where the constraint is violated), "
            "and that its product with the multiplier is added to the loss"
        )
    size = "; without primal, check that scale is the size of the loss" if case.self_tuned else ""
    return (
        f"Loosen the target by more than {short(answer.violation)}, or check that the violation depends on the "
        f"parameters and that no other constraint contradicts it{size}"
    )


def against_slowness(case: Case, answer: Answer) -> str:
    """A ki that would have met the constraint in a quarter of these steps, if it responds as it has until now."""
    steps = float(case.steps[-1] - case.steps[0])
    if case.ki > 0.0 and case.lr > 0.0 and answer.whole > answer.error:
        ki = 4.0 * _SETTLE / (answer.whole * steps) / case.lr
        if ki > case.ki:
            return f"Raise {case.step_size} from {short(case.ki)} to about {short(ki)}"
    now = f" from {short(case.ki)}" if case.ki > 0.0 else ""
    more = f"Raise {case.step_size}{now} tenfold, or train longer"
    return f"{more}; if the violation still stays, it may be infeasible"


def against_noise(case: Case, seen: Jitter) -> str:
    """More smoothing or a smaller kp, so that the steps are a tenth of the multiplier."""
    if math.isnan(case.kp):
        return "Average the violation over more samples, or use nupi.NuPI with nu = 0.9"
    if seen.level == 0.0 or seen.shake == 0.0:
        return "Set nu to 0.9, or average the violation over more samples (nupi.Averaged)"
    factor = 0.1 * seen.level / seen.shake
    nu = 1.0 - (1.0 - case.nu) * factor
    if nu <= 0.99:
        smooth = f"Set nu to about {nu:.2f} (now {short(case.nu)})"
        return f"{smooth}, or kp to about {short(case.kp * factor)} (now {short(case.kp)})"
    less = f"Lower kp from {short(case.kp)} to about {short(case.kp * factor)}"
    return f"{less}, or average the violation over more samples"


def against_overshoot(case: Case, share: float, where: int) -> str:
    """More damping. The size of the overshoot gives the damping ratio, its time gives the frequency."""
    if case.plain and (not case.ki > 0.0 or share >= 1.0):
        return "Lower lr, or use nupi.NuPI with kp > 0, which damps the swing"
    if not case.ki > 0.0 or share >= 1.0:
        return 'Raise kp, lower ki, or start gently with init="bumpless"'
    fall = -math.log(share)
    damping = fall / math.hypot(math.pi, fall)
    steps = max(1.0, float(case.steps[where] - case.steps[0]))
    frequency = math.pi / steps / math.sqrt(1.0 - damping**2)
    ki, kp = critical_gains(case.ki, case.kp, frequency, damping)
    if kp > case.kp and case.plain:
        return _instead(case.plain, ki, kp)
    if kp > case.kp:
        return f"Raise kp from {short(case.kp)} to about {short(kp)}" + (
            f", with ki {short(ki)}" if ki < case.ki else ""
        )
    return f"Lower {case.step_size} from {short(case.ki)} to about {short(case.ki / 4)}"
