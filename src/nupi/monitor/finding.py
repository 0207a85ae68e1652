"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "diverging", "oscillating", "infeasible", "overshoot", "slow", "noisy", "inactive", "capped"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

Severity: TypeAlias = Literal["severe", "moderate", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class ConstraintWarning(UserWarning):
    """A monitor has found that a constraint goes badly wrong. Raised as an error, it ends a run early."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a constraint, and what to do.

    Args:
        constraint: its name, with its index if only some of its group are concerned: `rates[3]`.
        kind: what is wrong.
        severity: "severe" if the run will not get well by itself, "moderate" if it could be better, "note" if
            nothing is wrong.
        evidence: a sentence with the numbers it was found by.
        advice: a sentence that says what to change, with values where there are any.
        steps: the first and the last step that show it.

    Example:
        >>> found = Finding("rate", "slow", "mild", "the violation is still 0.2", "raise ki to about 0.4", (1, 500))
        >>> found.kind, found.advice
        ('slow', 'raise ki to about 0.4')
    """

    constraint: str
    kind: Kind
    severity: Severity
    evidence: str
    advice: str
    steps: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{self.constraint!r} {_VERBS[self.kind]}: {self.evidence}. {self.advice}."


_VERBS: dict[Kind, str] = {
    "diverging": "diverges",
    "oscillating": "oscillates",
    "infeasible": "seems infeasible",
    "overshoot": "overshoots",
    "slow": "is slow",
    "noisy": "is noisy",
    "inactive": "is inactive",
    "capped": "is capped",
}
