"""Explain an error of a run by its record, in one or two sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.monitor.advice import short
from nupi.monitor.diagnose import diagnose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.monitor.record import Record


def explain(record: Record, names: Sequence[str]) -> str:
    """Severe findings about these constraints, else about others; without findings, their last violation."""
    found = [finding for finding in diagnose(record) if finding.severity == "severe"]
    if found:
        group_of = record.columns.group_of
        mine = [finding for finding in found if not names or group_of(finding.constraint) in names]
        return "The record shows: " + " ".join(str(finding) for finding in (mine or found)[:2])
    return " ".join(filter(None, (_last_seen(record, name) for name in list(names)[:2])))


def _last_seen(record: Record, name: str) -> str:
    """The last violation and multiplier of the worst constraint of a group."""
    seen = [one for one in record.series(record.columns.groups[name]) if len(one.steps)]
    if not seen:
        return ""
    worst = max(seen, key=lambda one: float(one.violation[-1].abs()))
    violation, multiplier = (short(float(values[-1])) for values in (worst.violation, worst.multiplier))
    return (
        f"The record shows nothing wrong with {name!r} up to step {int(worst.steps[-1])}, where the largest "
        f"violation was {violation} and its multiplier {multiplier}."
    )
