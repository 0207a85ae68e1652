"""One rule for each kind of finding: when a constraint's run is of this kind, and the evidence and advice for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nupi.monitor import advice, shape
from nupi.monitor.finding import Finding, Kind, Severity

if TYPE_CHECKING:
    import torch


class Answer(NamedTuple):
    """The `shape.Answers` of one constraint, as plain numbers."""

    violation: float
    multiplier: float
    whole: float
    best: float
    last: float
    error: float


@dataclass(frozen=True)
class Case:
    """One constraint's run, and the gains as they are set; an unknown gain is nan."""

    place: str
    steps: torch.Tensor
    e: torch.Tensor
    theta: torch.Tensor
    inequality: bool
    alone: bool  # whether it is a group of its own
    upper: float | None
    ki: float
    kp: float
    nu: float
    lr: float = 1.0  # multiplies ki and kp
    self_tuned: bool = False
    # The name of an optimizer that has a step size and no ki, such as SGD: its ki here is its lr.
    plain: str = ""

    @property
    def step_size(self) -> str:
        """The name of the gain ki in the user's optimizer."""
        return "lr" if self.plain else "ki"

    @property
    def size(self) -> float:
        """The scale of a large violation of this constraint: the size of the first ones."""
        first = max(1, min(len(self.e) // 20, 20))
        return float(self.e[:first].abs().max())

    def swing(self) -> shape.Swing | None:
        """A regular oscillation or None. Its period is in steps, of which there may be several between two rows."""
        found = shape.swing(self.e, self.size)
        if found is None:
            return None
        return found._replace(period=found.period * float(self.steps.diff().median()))

    def found(
        self, kind: Kind, severity: Severity, evidence: str, do: str, first: int = 0, *, rests: bool = False
    ) -> Finding:
        """A finding about this constraint, from the given row on; the multiplier moves, or it `rests`."""
        if self.self_tuned and not rests:
            do = advice.for_self_tuned(kind, do)
        span = (int(self.steps[first]), int(self.steps[-1]))
        return Finding(self.place, kind, severity, evidence, do, span)


SHORTEST = 8  # fewer steps are not judged
_GROWTH = 3.0
_BLOW_UP = 1e3
_PAST = 0.22
_LATE = 0.02  # a record that begins after this share of the run does not show its beginning
_SHAKE = 0.3


def judge_case(case: Case) -> list[Finding]:
    """What is wrong with one constraint: the finding of the first rule that applies. Rules are in order of weight."""
    if len(case.e) < 4:
        return []
    for rule in (diverging, inactive, oscillating, capped, unmoved, stuck, noisy, overshoot):
        finding = rule(case)
        if finding is not None:
            return [finding]
    return []


def diverging(case: Case) -> Finding | None:
    """The violation keeps growing by a factor, beyond all its earlier values."""
    e = case.e
    last = float(e[-max(1, len(e) // 20) :].abs().max())
    early = float(e[: max(1, len(e) // 4)].abs().max())
    # An inequality that is met by more and more does not diverge, unless it is by orders of magnitude.
    grown = shape.growth(e.where((case.theta != 0) | (e > 0), 0.0) if case.inequality else e)
    blown = last > _BLOW_UP * early > 0 and last == float(e.abs().max())
    if (grown < _GROWTH or len(e) < 2 * SHORTEST) and not blown:
        return None
    swing = case.swing()
    how = f"the size of the violation has grown from {advice.short(early)} to {advice.short(last)}"
    if swing is not None:
        how += f", crossing zero every {advice.short(swing.period / 2)} steps"
    return case.found("diverging", "severe", how, advice.against_divergence(case, swing))


def inactive(case: Case) -> Finding | None:
    """An inequality that was never violated and never had a multiplier."""
    if not case.inequality or bool((case.theta != 0).any()) or bool((case.e > 0).any()):
        return None
    most = float(case.e.max())
    how = f"the multiplier has been 0 throughout, and the violation never above {advice.short(most)}"
    return case.found(
        "inactive", "note", how, "Nothing needs to be done; tighten the bound if it should matter"
    )


def oscillating(case: Case) -> Finding | None:
    """The violation swings about zero at regular intervals."""
    if len(case.e) < 16:
        return None
    swing = case.swing()
    if swing is None:
        return None
    part = case.e[-max(1, len(case.e) // 4) :]
    left = float(part.abs().max())
    change = swing.growth - 1.0
    trend = (
        "keeps its size"
        if abs(change) < 0.005
        else f"{'grows' if change > 0 else 'falls'} by {abs(change):.0%} a cycle"
    )
    how = (
        f"the violation crosses zero every {advice.short(swing.period / 2)} steps and the swing {trend} "
        f"(period {advice.short(swing.period)}, damping ratio {swing.damping:.2f}), {advice.short(left)} at the end"
    )
    severity: Severity = "severe" if left > 0.2 * case.size else "moderate"
    return case.found("oscillating", severity, how, advice.against_swing(case, swing), swing.first)


def capped(case: Case) -> Finding | None:
    """The multiplier is at its upper bound, and the constraint is still violated."""
    if case.upper is None:
        return None
    late = slice(len(case.e) // 2, None)
    share = float((case.theta[late] >= case.upper - 1e-6 * abs(case.upper)).double().mean())
    violation = float(case.e[late].mean())
    if share < 0.2 or violation <= 0:
        return None
    how = (
        f"the multiplier is at its bound of {advice.short(case.upper)} in {share:.0%} of the later steps, with a "
        f"violation of {advice.short(violation)}"
    )
    return case.found(
        "capped",
        "moderate",
        how,
        f"Raise upper, to {advice.short(10 * case.upper)} say, or loosen the target",
    )


def unmoved(case: Case) -> Finding | None:
    """The constraint is violated, and its multiplier stays where it is."""
    half = len(case.e) // 2
    late, theta = case.e[half:], case.theta[half:]
    if len(late) < SHORTEST or bool((theta != theta[0]).any()):
        return None
    violation = float(late.mean() if case.inequality else late.mean().abs())
    if not violation > 0.05 * case.size:
        return None
    since = "throughout" if bool((case.theta == theta[0]).all()) else f"since step {int(case.steps[half])}"
    how = (
        f"the violation is still {advice.short(violation)}, and the multiplier has been "
        f"{advice.short(float(theta[0]))} {since}"
    )
    # Gains that SelfTuned has found will move it, in time.
    severity: Severity = "moderate" if case.self_tuned and case.ki > 0.0 else "severe"
    return case.found("slow", severity, how, advice.against_rest(case), rests=True)


def stuck(case: Case) -> Finding | None:
    """Infeasible or slow: the multiplier keeps growing, and the violation stays."""
    if len(case.e) < 2 * SHORTEST:
        return None
    answers = shape.answers(case.e[:, None], case.theta[:, None])
    answer = Answer(*map(float, answers[1:]))
    if not bool(answers.stays) or answer.violation < 1e-3 * case.size:
        return None
    fell = answer.last * answer.multiplier / 4.0
    change = _change(fell)
    numbers = (
        f"the violation is still {advice.short(answer.violation)} and the multiplier has grown to "
        f"{advice.short(answer.multiplier)}; the last quarter of this growth {change}"
    )
    if bool(answers.out_of_reach):
        if bool(answers.saturates):
            numbers += f"; an earlier quarter {_change(answer.best * answer.multiplier / 4.0)}"
        return case.found("infeasible", "severe", numbers, advice.against_infeasibility(case, answer))
    if answer.violation < 0.05 * case.size:
        return None
    return case.found("slow", "moderate", numbers, advice.against_slowness(case, answer))


def _change(fell: float) -> str:
    return f"{'lowered' if fell >= 0.0 else 'raised'} the violation by {advice.short(abs(fell))}"


def noisy(case: Case) -> Finding | None:
    """Noise of the violation moves the multiplier by more than a fraction of its mean in each step."""
    if len(case.e) < 32:
        return None
    seen = shape.jitter(case.e, case.theta)
    if abs(seen.whiteness) > 0.5 or seen.active < 0.05 or seen.shake < _SHAKE * seen.level:
        return None
    if not case.kp > 0.0 and not math.isnan(case.kp):
        return None
    share = (
        f", which is 0 in {1 - seen.active:.0%} of the steps"
        if case.inequality and seen.active < 0.95
        else ""
    )
    how = (
        f"noise of {advice.short(seen.noise)} in the violation moves the multiplier by {advice.short(seen.shake)} "
        f"a step, about a mean of {advice.short(seen.level)}{share}"
    )
    return case.found("noisy", "moderate", how, advice.against_noise(case, seen), len(case.e) // 2)


def overshoot(case: Case) -> Finding | None:
    """The violation goes far past zero before it comes back, or stays there while its multiplier unwinds."""
    if float(case.steps[0]) > _LATE * float(case.steps[-1]):
        return None  # one of a large group, recorded only while it was among the worst: its beginning is not known
    past, where = shape.past_zero(case.e)
    size = case.size
    if size == 0.0 or past < _PAST * size or past < 6.0 * shape.white_noise(case.e):
        return None
    theta = case.theta.abs()
    peak, end = float(theta.max()), float(theta[-max(1, len(theta) // 20) :].mean())
    if case.inequality:
        if float(case.e[0]) <= 0.0 or float(theta[where]) < 0.2 * peak:
            return None
        if end == 0.0 and not case.alone:
            return None  # the other constraints of its group keep it satisfied
    how = (
        f"the violation began at {advice.short(float(case.e[0]))} and went past zero by {advice.short(past)} "
        f"({past / size:.0%}); the multiplier peaked at {advice.short(peak)} and is {advice.short(end)} now"
    )
    return case.found("overshoot", "moderate", how, advice.against_overshoot(case, past / size, where), where)
