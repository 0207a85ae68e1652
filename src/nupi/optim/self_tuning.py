"""The rule of `SelfTuned`: gains from what is known of training.

Seen from a multiplier, training is a plant. A multiplier that is changed by d changes the violation by -b d at
every step from then on, and by itself a drift of the violation relaxes by the factor alpha a step. With b and alpha
known, two poles are placed: a fast one that kp makes, and a slow one, at 1 - w, by which the violation decays.

    kappa = 0.7 alpha, but no more than noise allows          kp = kappa / b
    w     = the share of the violation to remove a step       ki = w (1 - w - alpha + kappa) / ((1 - w) b)
    1 - nu = 1 - exp(-4 kappa)                                the smoothing follows from the speed

The step that is taken with these gains is nuPI's own (`nupi.rule`). The rule does not depend on units: a violation
times c has c^2 times the b, and 1/c times the multiplier.

**The size of a multiplier.** `scale` is the multiplier to expect: the one at which the constraint's gradient is as
large as the loss's (`balance`), or, if the loss has no gradient, the one that moves the violation at the wanted speed.
A constraint whose gradient vanishes does not make it larger: the largest gradient seen counts, and is forgotten by half
in `steps`. But a model that fits its loss well has next to no gradient of it, and then far more than `balance` is
needed. So `scale` is at least half of the largest multiplier that the violation has answered by falling. Two limits are
in units of `scale`.

**Noise.** A violation measured on a batch is its true value plus noise of size sigma, and kp sigma (times what the
smoothing leaves) is what the multiplier then shakes by. It may shake by a tenth of `scale`. Shaking more would drown
the loss. It would also start a runaway under Adam, whose steps do not depend on the gradient's size: a shaking
multiplier raises the second moments, which lowers b, which raises kp. Sigma is taken from the covariance of successive
changes: -sigma^2 for noise, >= 0 for a signal that moves smoothly.

**Leaps.** A violation may leap between two steps: a rate of decisions does, and so does a row that is shown now and
then. The answer that b asks for can be a hundred times `scale`, and would wreck the model: under Adam, which takes no
longer steps for it, as under SGD, whose step size does not suit such a Lagrangian. So one step moves a multiplier by at
most 0.7 of `scale`: kp (times the weight of the newest violation) times the largest change seen lately, and ki times
that or the violation, whichever is larger.

**Rows that are shown now and then.** A row acts on the model in the steps that show it, and its multiplier moves in
those. So the rule counts `period` dual steps for each of its own.

**Constraints that cannot be met.** Their multipliers would grow for ever, and under Adam exponentially, since b falls
as 1/theta. Beyond four times `scale` the integral gain falls with the square of the multiplier, which then grows as the
third root of time, and b follows no further down. Nor do b and `scale` follow the gradient of a constraint that has
lost half of its slope, while a multiplier beyond `scale` does not move its violation any more.

All functions work elementwise on tensors of one shape, in place, and never look at a value. `steps` is a number, or a
tensor that broadcasts to the multipliers. With few constraints an operation costs what its call does: hence `number`
for operands that are numbers, and the smallest of several for "all above 0".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch

from nupi.optim.arithmetic import at_least, at_most, being_traced, exp, number, times
from nupi.rule import subtract_scaled_

if TYPE_CHECKING:
    from nupi.constraints import Bounds
    from nupi.rule import Gain

State: TypeAlias = "dict[str, torch.Tensor]"

SPEED = 4.0  # the violation decays by e^-4 = 2% in `steps`
FAST_POLE = 0.7  # kappa where nothing limits it
SHAKING = 0.1  # the share of `scale` by which noise may move a multiplier
SMOOTHING = 32.0  # averages reach back over steps / 32
SOFT = 4.0 / 3.0  # the factor of the speed from half of `steps` on; it grows to that from 0
LEAP = 0.7  # the share of `scale` by which one step may move a multiplier
PATIENCE = 0.03  # a violation above this share of its worst is not met yet
URGENCY = 9.0  # by how much the speed grows in `steps` if it is not (in log)
BEYOND = 4.0  # in units of `scale`: where a multiplier is taken for too large
ROOM = 4.0  # where `balance` is a guess from the size of the loss, it may be so much too small
GUESSING = 0.1  # the most that kappa may be while b is a guess
AT_REST = 1e-3  # the share of an identified violation by which it is at least taken to leap
PROGRESS = 0.9  # of what a violation was steps / 4 ago: above it, a multiplier beyond `scale` pushes in vain
ANSWER = 0.25  # to r times the multiplier, a violation that falls by r^-0.25 or more is an answer
FALL = 1.001  # a violation that falls by less than this factor has not moved
PROVEN = 0.5  # the share of the largest multiplier that was answered that `scale` is at least
FAINT = 1e-11  # a `scale` below this is that of a loss without a gradient, and says nothing
TINY = 1e-30

GAINS = ("ki", "kp", "weight", "pull", "damping")  # pull = ki + damping, damping = kp weight
NOTES = ("last", "change")
SUMMARIES = ("age", "covariance", "mean", "level", "slow", "lagging", "jump")
JUDGED = ("worst", "boost", "stuck", "proven")
PLANT = ("response", "curvature", "balance", "speed", "slope", "least", "sure")


def open_(theta: torch.Tensor, state: State, e: torch.Tensor) -> None:
    """Set the state before the first step: bumpless, so that the first step knows no kick. The plant is kept."""
    for name in ("xi", "last", "mean", "slow"):
        state[name].copy_(e)
    for name in ("level", "lagging"):
        state[name].copy_(theta)
    state["boost"].fill_(1.0)


def note_(state: State, e: torch.Tensor) -> None:
    """Note a violation and its change, for `watch_` to compare the next with."""
    torch.sub(e, state["last"], out=state["change"])
    state["last"].copy_(e)


def watch_(theta: torch.Tensor, state: State, e: torch.Tensor, steps: Gain, stride: float) -> None:
    """Take a violation in: its changes, its mean, and the mean of the multiplier that it answers.

    `jump` is the largest change that was seen, forgotten as fast as a violation is to decay.

    Args:
        theta: the multipliers, before they are moved.
        state: of the rule.
        e: the violation.
        steps: the horizon of the rule.
        stride: how many steps this one stands for.
    """
    before = state["change"].clone()
    note_(state, e)
    state["covariance"].lerp_(before.mul_(state["change"]), 1 / 32)
    slowly = at_most(SPEED * stride / steps, 1.0)
    fading = exp(slowly * -1.0)
    torch.maximum(state["jump"].mul_(number(fading, e)), state["change"].abs(), out=state["jump"])
    state["age"].add_(number(float(stride), e))
    _smooth_(state, ("mean", "level"), e, theta, smoothing(steps, stride))
    _smooth_(state, ("slow", "lagging"), e, theta, slowly)


def _smooth_(state: State, names: tuple[str, str], e: torch.Tensor, theta: torch.Tensor, rate: Gain) -> None:
    """Take the violation and the multiplier into their averages."""
    averages = [state[name] for name in names]
    if isinstance(rate, torch.Tensor) or being_traced():  # a sweep knows no operation on lists
        for average, newest in zip(averages, (e, theta), strict=True):
            average.lerp_(newest, rate)
    else:
        torch._foreach_lerp_(averages, (e, theta), rate)


def retune_(
    state: State,
    steps: Gain,
    stride: float,
    past: float,
    per_step: float,
    bounds: Bounds | None,
    period: float = 1.0,
    *,
    early: bool = False,
) -> None:
    """Write the gains that place the poles, given what is known; 0 where nothing is known of the plant yet.

    Args:
        state: of the rule.
        steps: the dual steps within which the constraints should be met.
        stride: how many steps lie between two calls of `watch_`.
        past: how many steps have passed since the last call of this; 0 if that is not known.
        per_step: primal steps per dual step, N. Over them a drift relaxes by alpha = exp(-h N), and a change of
            the multiplier acts through b N (1 - alpha) / (h N).
        bounds: of the multipliers; without any, an error of either sign is a violation.
        period: dual steps from one step of these multipliers to the next; more than 1 where a batch shows some rows.
        early: whether no multiplier has taken more than `steps` steps. Then nothing can be overdue or stuck, and what
            tells that is left out.
    """
    noise = sigma(state)
    left = certain_violation(state, noise, steps, stride, bounds)
    torch.maximum(state["worst"], left, out=state["worst"])
    size = state["level"].abs()
    _prove_(state, noise, left, size, smoothing(steps, stride))
    scale = scale_of(state)
    room = ROOM if "most" in state else 1.0
    reach = (scale * number(room * BEYOND, scale)).clamp_(min=TINY)
    leap = torch.where(
        scale > number(FAINT, scale), scale * number(room * LEAP, scale), number(math.inf, scale)
    )
    if early:
        state["stuck"].zero_()
    else:
        overdue = state["age"] - number(steps, scale)
        _hurry_(state, steps, past, overdue, left, reach - size)
        _mark_stuck_(state, overdue, left, size - scale)

    lasting = per_step * period
    relaxed = times(state["curvature"], lasting).clamp(min=1e-6)
    kept = relaxed.neg()
    gone = torch.expm1(kept).neg_()  # 1 - alpha
    b = times((state["response"] * gone).div_(relaxed), lasting).clamp(min=TINY)
    soft = (state["age"] * number(2.0 / steps * SOFT, scale)).clamp_(max=SOFT)
    top, wanted = times(state["speed"], per_step), number(SPEED / steps, scale)
    speed = at_most(torch.where(top > number(0.0, scale), top, wanted), wanted)
    w = times(torch.mul(speed, state["boost"]).mul_(soft), period)
    quiet = (b * scale).mul_(number(SHAKING, scale)).div_(noise.clamp_(min=TINY))
    half = number(0.5, scale)
    # kappa sqrt(weight / (2 - weight)) <= quiet: kappa itself where there is no smoothing, sqrt(2 kappa^3) where much.
    allowed = torch.maximum(quiet, quiet.square().mul_(half).pow_(1.0 / 3.0))
    # Less than 2 w would not damp a constraint on its way; one that is met need not be hurried.
    damped = torch.add(w, w).mul_(left.sign())
    kappa = torch.minimum(kept.exp_().mul_(number(FAST_POLE, scale)), torch.maximum(allowed, damped))
    # kappa weight jump <= b leap: kappa itself where there is no smoothing, 4 kappa^2 where much.
    jump = state["jump"]
    if (
        "most" in state
    ):  # what does not answer at all lets b fall, and must not let kp grow beyond what floats hold
        jump = torch.maximum(jump, left * AT_REST)
    free = (b * leap).div_(jump.clamp(min=TINY))
    kappa = torch.minimum(kappa, torch.maximum(free, free.sqrt().mul_(half)))
    if "most" in state:  # b is a guess until it has been identified, and may be too small
        kappa = torch.where(state["sure"] > 0, kappa, kappa.clamp(max=GUESSING))
    w = torch.minimum(w, torch.lerp(gone, kappa, 0.5)).clamp_(max=0.5)
    ki = (gone + kappa).sub_(w).clamp_(min=0.0).mul_(w)
    ki.div_(torch.addcmul(b, b, (size / reach).square_())).div_(number(1.0, scale) - w)
    ki = torch.minimum(ki, leap.div_(torch.maximum(state["jump"], left).clamp_(min=TINY)))
    known = state["response"].sign()
    torch.mul(ki, known, out=state["ki"])
    torch.mul(kappa / b, known, out=state["kp"])
    torch.neg(torch.expm1(kappa * number(-4.0, scale)), out=state["weight"])
    torch.mul(state["kp"], state["weight"], out=state["damping"])
    torch.add(state["ki"], state["damping"], out=state["pull"])


def _prove_(state: State, noise: torch.Tensor, left: torch.Tensor, size: torch.Tensor, rate: Gain) -> None:
    """Remember the largest multiplier that a violation, which is not met yet, has answered.

    To a multiplier r times what it was `steps` / 4 ago, a violation that falls to r^-ANSWER is an answer, if it is
    certain by the standard error of its mean. A multiplier at rest is answered by any certain fall.
    """
    grown = (size / state["lagging"].abs().clamp_(min=TINY)).clamp_(min=1.0)
    answer = grown.pow_(-ANSWER).mul_(state["slow"].abs()).sub_(state["mean"].abs(), alpha=FALL)
    subtract_scaled_(answer, noise, _error_of_mean(rate))
    answers = torch.minimum(answer, left).sign_().clamp_(min=0.0)
    torch.maximum(state["proven"], answers.mul_(size), out=state["proven"])


def _mark_stuck_(state: State, overdue: torch.Tensor, left: torch.Tensor, above: torch.Tensor) -> None:
    """Mark the violations that a multiplier beyond `scale`, by `above`, does not move any more."""
    unmoved = state["mean"].abs().sub_(state["slow"].abs(), alpha=PROGRESS)
    stuck = torch.minimum(torch.minimum(unmoved, above), torch.minimum(left, overdue))
    state["stuck"].copy_(stuck.sign_().clamp_(min=0.0))


def _hurry_(
    state: State, steps: Gain, past: float, overdue: torch.Tensor, left: torch.Tensor, below: torch.Tensor
) -> None:
    """After `steps`, speed up while a violation is not met, unless its multiplier is too large: `below` its limit."""
    unmet = torch.sub(left, state["worst"], alpha=PATIENCE)
    late = torch.minimum(torch.minimum(unmet, below), overdue) > number(0.0, left)
    most = at_least(0.25 * steps / (10 * SPEED), 1.0)
    faster = number(exp(at_most(URGENCY / steps, 0.1) * past), left)
    grown = at_most(state["boost"] * faster, number(most, left))
    state["boost"].copy_(torch.where(late, grown, state["boost"]))


def violation(state: State, bounds: Bounds | None) -> torch.Tensor:
    """The smoothed violation: its size for an equality, what is above 0 for an inequality."""
    mean = state["mean"]
    return mean.abs() if bounds is None or bounds.both or bounds.lower is None else mean.clamp(min=0.0)


def certain_violation(
    state: State, noise: torch.Tensor, steps: Gain, stride: float, bounds: Bounds | None
) -> torch.Tensor:
    """The smoothed violation less twice the standard error of its mean: noise alone is no violation."""
    left = violation(state, bounds)
    subtract_scaled_(left, noise, 2.0 * _error_of_mean(smoothing(steps, stride)))
    return left.clamp_(min=0.0)


def _error_of_mean(rate: Gain) -> Gain:
    """The standard error of an average, in units of the noise."""
    return (rate / (2 - rate)) ** 0.5


def scale_of(state: State) -> torch.Tensor:
    """The size of multiplier to expect.

    It is `balance`, or what the first b asks for if the loss has no gradient, or half of the largest multiplier that
    the violation has answered: whichever is largest.
    """
    guess = torch.maximum(state["balance"], state["least"])
    return torch.maximum(guess, state["proven"] * number(PROVEN, guess))


def sigma(state: State) -> torch.Tensor:
    """The noise of the violation: the root of minus the covariance of successive changes.

    The average starts at 0, with the second change; what it lacks at the start is divided out.
    """
    age = state["age"]
    pairs = (age - number(2.0, age)).clamp_(min=1.0)
    return (state["covariance"] / pairs.mul_(number(-1 / 32, age)).expm1_()).clamp_(min=0.0).sqrt_()


def smoothing(steps: Gain, stride: float) -> Gain:
    """The weight of the newest number in an average."""
    return at_most(SMOOTHING * stride / steps, 1.0)
