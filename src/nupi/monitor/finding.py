"""The findings of a diagnosis, and the warning for a severe one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "diverging", "oscillating", "infeasible", "overshoot", "slow", "noisy", "inactive", "capped"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What a `Finding` can say of a constraint."""

Severity: TypeAlias = Literal["severe", "moderate", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class ConstraintWarning(UserWarning):
    """A monitor has a severe finding about a constraint. If you make this warning an error, it ends the run.

    Example:
        >>> import warnings
        >>> import torch
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)  # without kp nothing damps it
        >>> monitor, x = nupi.Monitor(lagrangian), torch.tensor([1.0])
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", nupi.ConstraintWarning)
        ...     for step in range(1000):
        ...         lagrangian.ascend(dual, {"sum": x})
        ...         x = x - 0.1 * lagrangian.multipliers["sum"].detach()
        Traceback (most recent call last):
        nupi.monitor.finding.ConstraintWarning: 'sum' oscillates: ...
        >>> step < 300
        True
    """


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a constraint, and what to do.

    Args:
        constraint: its name; with an index if only some constraints of the group are concerned: `rates[3]`.
        kind: what is wrong, one of `nupi.monitor.KINDS`.
        severity: "severe" if the run will not recover by itself, "moderate" if it could be better, "note" if
            nothing is wrong.
        evidence: a sentence with the numbers that show it.
        advice: a sentence that says what to change, with values if they are known.
        steps: the first and the last step that show it.

    Example:
        >>> found = Finding("rate", "slow", "moderate", "the violation is still 0.2", "Raise ki to about 0.4", (1, 500))
        >>> found.kind, found.advice
        ('slow', 'Raise ki to about 0.4')
        >>> print(found)
        'rate' is slow: the violation is still 0.2. Raise ki to about 0.4.
        >>> KINDS
        ('diverging', 'oscillating', 'infeasible', 'overshoot', 'slow', 'noisy', 'inactive', 'capped')
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
