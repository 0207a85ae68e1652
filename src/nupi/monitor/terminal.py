"""Show a record in the terminal: one line per constraint, with sparklines, and the findings below."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group as Stack
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nupi.monitor.columns import STATISTICS
from nupi.monitor.diagnose import diagnose
from nupi.monitor.report import verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nupi.monitor.columns import Group
    from nupi.monitor.record import Record
    from nupi.monitor.thinned import Overview

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 100  # from this many columns on, gains and sparklines are shown
_MEDIUM = 64  # from this many columns on, sparklines are shown
_COLORS = {"severe": "bold red", "moderate": "yellow", "note": "dim", "well": "bold green"}


def picture(record: Record, rows: int = 20, columns: int = 120) -> RenderableType:
    """The whole picture for a screen of `columns` columns, with at most `rows` constraints.

    On a narrow screen the gains are left out first, then the sparklines. Names, numbers and findings always stay.
    """
    wide, medium = columns >= _WIDE, columns >= _MEDIUM
    width = max(6, min(30, (columns - (76 if wide else 54)) // 2))
    findings = diagnose(record)
    said = verdict(record, findings)
    table = Table(expand=False)
    table.add_column("constraint", overflow="fold")
    for heading in ("violation", "multiplier"):
        if medium:
            table.add_column(heading, no_wrap=True)
        table.add_column("" if medium else heading, no_wrap=True, justify="right")
    if wide:
        table.add_column("gains", overflow="fold")
    table.add_column("findings", overflow="fold")
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(record.columns.group_of(finding.constraint), []).append(finding.kind)
    groups = sorted(record.columns.groups.values(), key=lambda group: group.name not in kinds)
    overview = record.overview() if len(record) else None
    for group in groups[:rows] if overview is not None else []:
        assert overview is not None
        e, theta = (_line(overview, group, name) for name in ("violation", "multiplier"))
        history = record.gains_of(group.name)
        gains = history.latest if history is not None else {}
        said_gains = " ".join(
            f"{name} {value:.3g}" for name, value in gains.items() if name in {"ki", "kp", "lr"}
        )
        name = group.name if group.size == 1 else f"{group.name} ({group.size:,})"
        found = ", ".join(dict.fromkeys(kinds.get(group.name, [])))
        cells = [escape(name)]
        for values in (e, theta):
            cells += [sparkline(values, width), _last(values)] if medium else [_last(values)]
        table.add_row(*cells, *([said_gains] if wide else []), found)
    parts: list[RenderableType] = [Text(said["text"], style=_COLORS[said["level"]]), table]
    if len(groups) > rows:
        parts.append(Text(f"… and {len(groups) - rows:,} more", style="dim"))
    parts += [Text(str(finding), style=_COLORS[finding.severity]) for finding in findings[:rows]]
    return Stack(*parts)


def sparkline(values: list[float], width: int) -> str:
    """Values as a row of bars; the lowest bar is the minimum, the highest the maximum.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, 3.0], 4)
        '▁▃▆█'
    """
    if not values:
        return ""
    every = max(1, math.ceil(len(values) / width))
    seen = [sum(some) / len(some) for some in (values[i : i + every] for i in range(0, len(values), every))]
    low, high = min(seen), max(seen)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in seen)


def _line(overview: Overview, group: Group, name: str) -> list[float]:
    """The violation or the multiplier over the run. For a group: the largest violation, the mean multiplier."""
    if group.statistics is not None:
        which = "violation_max" if name == "violation" else "multiplier_mean"
        column = group.statistics + STATISTICS.index(which)
    else:
        column = group.violations if name == "violation" else group.multipliers
    return [value for value in overview.mean[:, column].tolist() if math.isfinite(value)]


def _last(values: list[float]) -> str:
    return f"{values[-1]:.3g}" if values else ""
