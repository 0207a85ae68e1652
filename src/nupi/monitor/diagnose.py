"""Say what is wrong with a run. Every constraint is judged alone; findings of one kind in a group become one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nupi.monitor.finding import SEVERITIES, Finding
from nupi.monitor.gains import as_set
from nupi.monitor.rules import Case, judge_case

if TYPE_CHECKING:
    from nupi.monitor.columns import Group
    from nupi.monitor.record import GainHistory, Record, Series

_SPARSE = 512  # with more groups than this, only the worst are judged


def diagnose(record: Record) -> list[Finding]:
    """The findings of a record, the worst first; at most one of a kind for each group of constraints.

    Example:
        >>> from nupi.monitor import Played, replay
        >>> t = torch.arange(400.0)[:, None] / 8
        >>> run = Played(t.cos(), t.sin(), inequality=False)
        >>> [finding.kind for finding in diagnose(replay({"sum": run}))]
        ['oscillating']
    """
    findings: list[Finding] = []
    for group in _judged(record):
        findings += _told_together(group, _of_group(record, group))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def judge(
    violation: torch.Tensor,
    multiplier: torch.Tensor,
    *,
    inequality: bool,
    name: str = "constraint",
    ki: float = math.nan,
    kp: float = math.nan,
    nu: float = 0.0,
    upper: float | None = None,
) -> list[Finding]:
    """The findings of a run that another program has recorded.

    Args:
        violation: the violation at each step, (steps,) or (steps, constraints).
        multiplier: the multipliers after each step, of the same shape.
        inequality: whether the multipliers are kept at 0 or above.
        name: the name of the constraints in the findings.
        ki: the integral gain; nan if there is none. If the gains are given, the advice has numbers.
        kp: the proportional gain.
        nu: the smoothing.
        upper: the bound on the multipliers, if there is one.

    Example:
        >>> t = torch.arange(400.0)
        >>> [finding] = judge(torch.cos(t / 8), torch.sin(t / 8), inequality=False, ki=0.125, kp=0.0)
        >>> finding.kind, finding.advice
        ('oscillating', 'Kp is 0: raise it to about 1.99')
    """
    from nupi.monitor.columns import Group

    if violation.shape != multiplier.shape or violation.dim() not in {1, 2}:
        raise ValueError(
            f"violation has shape {tuple(violation.shape)} and multiplier {tuple(multiplier.shape)}; both must be "
            "(steps,) or (steps, constraints)"
        )
    if not len(violation):
        return []
    e, theta = (t.detach().to("cpu", torch.float64).reshape(len(t), -1) for t in (violation, multiplier))
    steps = torch.arange(1, len(e) + 1, dtype=torch.float64)
    count = e.shape[1]
    group = Group(name, "", (count,), inequality, upper, 0, 0, count, None, None)
    found = []
    for index in range(count):
        gains = (ki, kp, nu)
        place = group.place(index)
        case = Case(place, steps, e[:, index], theta[:, index], inequality, count == 1, upper, *gains)
        found += judge_case(case)
    return sorted(_told_together(group, found), key=lambda finding: SEVERITIES.index(finding.severity))


def _judged(record: Record) -> list[Group]:
    """The groups to judge: all, or only the worst if there are too many."""
    groups = list(record.columns.groups.values())
    if len(groups) <= _SPARSE or not len(record):
        return groups
    columns = record.recent()[1][-256:]

    def worst(group: Group) -> float:
        some = columns[:, group.violations : group.violations + group.slots]
        size = some.nan_to_num().abs().amax()
        return float(size)

    return sorted(groups, key=worst, reverse=True)[:_SPARSE]


def _of_group(record: Record, group: Group) -> list[Finding]:
    history = record.gains_of(group.name)
    set_to = {} if history is None else _gains(history)
    found: list[Finding] = []
    for series in record.series(group):
        found += judge_case(_case(series, set_to))
    if group.indices is not None:
        # Of a large group only the worst were recorded, so whether all are inactive is judged by the extremes.
        found = [finding for finding in found if finding.kind != "inactive"] + _inactive(record, group)
    return found


def _inactive(record: Record, group: Group) -> list[Finding]:
    seen = record.statistics(group)
    high, most = seen["violation_max"], seen["multiplier_max"]
    steps = record.recent()[0]
    if not group.inequality or len(steps) < 4:
        return []
    case = Case(group.name, steps, high, most, True, True, group.upper, math.nan, math.nan, math.nan)
    return [
        replace(finding, constraint=group.name) for finding in judge_case(case) if finding.kind == "inactive"
    ]


def _gains(history: GainHistory) -> dict[str, Any]:
    """The gains as fields of a `Case`, and whether the user or `SelfTuned` sets them."""
    ki, kp, nu, lr = as_set(history.latest, history.kind)
    self_tuned = history.kind == "SelfTuned"
    plain = "" if self_tuned or "ki" in history.latest else history.kind
    return {"ki": ki, "kp": kp, "nu": nu, "lr": lr, "self_tuned": self_tuned, "plain": plain}


def _case(series: Series, gains: dict[str, Any]) -> Case:
    group = series.group
    alone = group.size == 1
    parts = (series.place, series.steps, series.violation, series.multiplier, group.inequality, alone)
    return Case(*parts, group.upper, **(dict.fromkeys(("ki", "kp", "nu"), math.nan) | gains))


def _told_together(group: Group, findings: list[Finding]) -> list[Finding]:
    """One finding for each kind: the first, with the number of others. A group is inactive only as a whole."""
    told = []
    for kind in dict.fromkeys(finding.kind for finding in findings):
        same = [finding for finding in findings if finding.kind == kind]
        if kind == "inactive" and len(same) < group.slots and group.indices is None:
            continue
        first = min(same, key=lambda finding: SEVERITIES.index(finding.severity))
        if len(same) == group.size and group.size > 1:
            first = replace(first, evidence=f"{first.evidence} (and all others of {group.name!r})")
        elif len(same) > 1:
            first = replace(first, evidence=f"{first.evidence} (and {len(same) - 1} more of {group.name!r})")
        told.append(replace(first, constraint=group.name) if kind == "inactive" else first)
    return told
