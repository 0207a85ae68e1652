"""One HTML file that shows a run: a verdict, plots, findings, all constraints. It needs no network and no server."""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nupi.monitor import curves
from nupi.monitor.diagnose import diagnose
from nupi.monitor.finding import SEVERITIES

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from nupi.monitor.columns import Group
    from nupi.monitor.finding import Finding
    from nupi.monitor.record import Record, Series

_PLOTS = 24  # constraints that are drawn; the table has all
_ROWS = 20_000  # rows of the table


def write_report(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the report of a record to an HTML file."""
    findings = diagnose(record)
    data = {
        "verdict": verdict(record, findings),
        "findings": [{**finding.__dict__, "steps": list(finding.steps)} for finding in findings],
        "info": _info(record),
        "gains": _gains(record),
        "curves": _curves(record, findings),
        "table": _table(record, findings),
    }
    # A name may contain "<", which must not end the script.
    content = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "/*STYLE*/": _part("page.css"),
        "/*SCRIPT*/": _part("page.js"),
        "/*DATA*/": content,
    }
    page = _part("page.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    Path(path).write_text(page, encoding="utf-8")


def verdict(record: Record, findings: Sequence[Finding]) -> dict[str, str]:
    """One sentence that says whether all is well."""
    steps = f"{record.last_step:,} steps"
    if not len(record):
        return {"level": "note", "text": "Nothing has been recorded yet."}
    counts = {level: sum(finding.severity == level for finding in findings) for level in SEVERITIES}
    if counts["severe"]:
        names = ", ".join(dict.fromkeys(f.constraint for f in findings if f.severity == "severe"))
        kinds = ", ".join(dict.fromkeys(f.kind for f in findings if f.severity == "severe"))
        return {"level": "severe", "text": f"Not well after {steps}: {kinds} ({_shortened(names)})."}
    if counts["moderate"]:
        kinds = ", ".join(dict.fromkeys(f.kind for f in findings if f.severity == "moderate"))
        return {"level": "moderate", "text": f"Could be better after {steps}: {kinds}."}
    if counts["note"]:
        return {"level": "well", "text": f"Well after {steps}; some constraints are inactive."}
    return {"level": "well", "text": f"Well after {steps}: nothing was found that should be changed."}


def _shortened(names: str, most: int = 120) -> str:
    return names if len(names) <= most else names[:most].rsplit(", ", 1)[0] + ", …"


def _part(name: str) -> str:
    return (resources.files("nupi.monitor") / "page" / name).read_text(encoding="utf-8")


def _info(record: Record) -> list[tuple[str, str]]:
    said = [(key, str(value)) for key, value in record.info.items() if value is not None]
    kept = f"{len(record.recent()[0]):,} in full, all {len(record):,} thinned out"
    duals = dict.fromkeys(gains.kind for gains in record.gains)
    return [*said, ("dual optimizer", ", ".join(duals) or "not seen"), ("recorded steps", kept)]


def _gains(record: Record) -> list[dict[str, Any]]:
    told = []
    for history in record.gains[-50:]:
        names = _shortened(", ".join(history.names[:20]), 80)
        changes = history.changes[-1:] if len(history.changes) < 2 else history.changes
        every = max(1, len(changes) // 200)
        told.append(
            {
                "names": names,
                "kind": history.kind,
                "latest": {name: float(f"{value:.5g}") for name, value in history.latest.items()},
                "steps": [step for step, _ in changes[::every]],
                "history": {
                    name: [_number(gains.get(name)) for _, gains in changes[::every]]
                    for name in history.latest
                },
            }
        )
    return told


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _curves(record: Record, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The curves of constraints with findings, then of a few others. A larger group also has a plot of its own."""
    if not len(record):
        return []
    overview = record.overview()
    found = {finding.constraint for finding in findings}
    concerned = list(dict.fromkeys(record.columns.group_of(finding.constraint) for finding in findings))
    order = {name: number for number, name in enumerate(concerned)}
    groups = sorted(record.columns.groups.values(), key=lambda group: order.get(group.name, len(order)))
    drawn: list[dict[str, Any]] = []
    for group in groups[:_PLOTS]:
        if group.statistics is not None:
            drawn.append(curves.of_group(overview, record, group))
        if group.statistics is None or group.name in concerned:
            chosen = sorted(record.series(group), key=lambda one: (one.place not in found, -_badness(one)))
            some = chosen[: 1 + sum(one.place in found for one in chosen)][:4]
            drawn += [curves.of_constraint(overview, one) for one in some if len(one.steps)]
    return drawn[:_PLOTS]


def _badness(series: Series) -> float:
    return float(series.violation[-64:].abs().max()) if len(series.violation) else 0.0


def _table(record: Record, findings: Sequence[Finding]) -> list[list[Any]]:
    """One row per constraint: name, kind, last violation, its minimum and maximum, last multiplier, findings."""
    if not len(record):
        return []
    rows: list[list[Any]] = []
    columns, overview = record.recent()[1], record.overview()
    last = _last_seen(columns).tolist()
    low = overview.low.nan_to_num(nan=float("inf")).amin(0).tolist()
    high = overview.high.nan_to_num(nan=float("-inf")).amax(0).tolist()
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.constraint, []).append(finding.kind)
    for group in record.columns.groups.values():
        if group.indices is None:
            for index in range(group.slots):
                at, theta = group.violations + index, group.multipliers + index
                numbers = [_number(x) for x in (last[at], low[at], high[at], last[theta])]
                place = group.place(index)
                rows.append(
                    [place, group.kind, *numbers, ", ".join(kinds.get(place, kinds.get(group.name, [])))]
                )
        else:
            rows += _of_large(record, group, kinds)
        if len(rows) > _ROWS:
            return rows[:_ROWS]
    return rows


def _of_large(record: Record, group: Group, kinds: dict[str, list[str]]) -> list[list[Any]]:
    seen = record.statistics(group)
    mean, least, most = (seen[f"violation_{name}"] for name in ("mean", "min", "max"))
    theta = seen["multiplier_mean"]
    name = f"{group.name} (mean of {group.size:,})"
    ends = (
        _last(mean),
        float(least.nan_to_num(nan=math.inf).min()),
        float(most.nan_to_num(nan=-math.inf).max()),
    )
    rows = [[name, group.kind, *map(_number, (*ends, _last(theta))), ", ".join(kinds.get(group.name, []))]]
    for series in record.series(group):
        if len(series.steps):
            e = series.violation
            numbers = (float(e[-1]), float(e.min()), float(e.max()), float(series.multiplier[-1]))
            rows.append(
                [series.place, group.kind, *map(_number, numbers), ", ".join(kinds.get(series.place, []))]
            )
    return rows


def _last(values: torch.Tensor) -> float:
    return float(_last_seen(values[:, None])[0])


def _last_seen(columns: torch.Tensor) -> torch.Tensor:
    """The last measured number of each column."""
    order = torch.arange(len(columns))[:, None].expand_as(columns)
    row = torch.where(columns.isnan(), -1, order).amax(0)
    return torch.where(row >= 0, columns.gather(0, row.clamp(min=0)[None])[0], torch.nan)
