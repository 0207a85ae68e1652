"""The curves of a report: at most 400 points a line, with a band from the smallest to the largest value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nupi.monitor.columns import STATISTICS

if TYPE_CHECKING:
    from nupi.monitor.columns import Group
    from nupi.monitor.record import Record, Series
    from nupi.monitor.thinned import Overview

POINTS = 400  # points of a line
_PHASE = 600  # points of a phase plot


def plain(values: torch.Tensor) -> list[float | None]:
    """Numbers for JSON, with five digits; None for a number that was not measured or is infinite."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in values.tolist()]


def of_constraint(overview: Overview, series: Series) -> dict[str, Any]:
    """The whole run of one constraint, as means and bands, and its last steps for the phase plot."""
    group, index = series.group, series.index
    lines: dict[str, Any] = {"name": series.place, "inequality": group.inequality, "upper": group.upper}
    if group.indices is None:
        lines["steps"] = plain(_fewer(overview.steps))
        for name, column in (("violation", group.violations), ("multiplier", group.multipliers)):
            lines[name] = _band(*(part[:, column + index] for part in overview[1:]))
    else:
        # A column changes from one constraint to another, so only the steps kept in full are known of one constraint.
        lines["steps"] = plain(_fewer(series.steps))
        for name, values in (("violation", series.violation), ("multiplier", series.multiplier)):
            lines[name] = _band(values, values, values)
    every = max(1, math.ceil(len(series.steps) / _PHASE))
    lines["phase"] = [plain(part[::every]) for part in (series.multiplier, series.violation)]
    return lines


def of_group(overview: Overview, record: Record, group: Group) -> dict[str, Any]:
    """The whole run of a group: its mean, with a band from its minimum to its maximum."""
    assert group.statistics is not None
    place = {name: group.statistics + i for i, name in enumerate(STATISTICS)}
    lines: dict[str, Any] = {
        "name": group.name,
        "inequality": group.inequality,
        "upper": group.upper,
        "group": group.size,
        "steps": plain(_fewer(overview.steps)),
    }
    for name in ("violation", "multiplier"):
        lines[name] = _band(
            overview.mean[:, place[f"{name}_mean"]],
            overview.low[:, place[f"{name}_min"]],
            overview.high[:, place[f"{name}_max"]],
        )
    lines["active"] = plain(_fewer(overview.mean[:, place["active"]]))
    seen = record.statistics(group)
    every = max(1, math.ceil(len(seen["active"]) / _PHASE))
    lines["phase"] = [plain(seen[f"{name}_mean"][::every]) for name in ("multiplier", "violation")]
    return lines


def _band(mean: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> dict[str, list[float | None]]:
    return {"mean": plain(_fewer(mean)), "low": plain(_fewer(low, "min")), "high": plain(_fewer(high, "max"))}


def _fewer(values: torch.Tensor, take: str = "mean") -> torch.Tensor:
    """At most `POINTS` values: each is the mean, the minimum or the maximum of neighbours that were measured."""
    every = math.ceil(len(values) / POINTS)
    if every <= 1:
        return values
    gaps = -len(values) % every
    whole = torch.cat([values, values.new_full((gaps,), torch.nan)]).reshape(-1, every)
    if take == "mean":
        return whole.nanmean(1)
    missing = torch.inf if take == "min" else -torch.inf
    ends = torch.where(whole.isnan(), missing, whole)
    return ends.amin(1) if take == "min" else ends.amax(1)
