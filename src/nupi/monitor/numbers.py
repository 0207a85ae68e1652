"""The numbers of a step by the name in the log: `nupi/<constraint>/violation` and so on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nupi.monitor.columns import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.monitor.record import Record

# Of a group, `violation` and `multiplier` are means.
NAMES = [name.removesuffix("_mean") for name in STATISTICS]


def numbers(record: Record, row: Sequence[float], before: Sequence[float] | None) -> dict[str, float]:
    """The numbers of one row, for the constraints that the step had.

    Args:
        record: the record, with the columns and the gains.
        row: the columns of a step.
        before: the columns of the step before it.
    """
    found: dict[str, float] = {}
    for group in record.columns.groups.values():
        prefix = f"nupi/{group.name}/"
        if group.statistics is not None:
            values = row[group.statistics : group.statistics + len(NAMES)]
            named = dict(zip(NAMES, values, strict=True))
        else:
            step = row[group.multipliers] - before[group.multipliers] if before is not None else math.nan
            named = {
                "violation": row[group.violations],
                "multiplier": row[group.multipliers],
                "multiplier_step": step,
            }
        if math.isnan(named["violation"]):
            continue
        found |= {prefix + name: value for name, value in named.items() if not math.isnan(value)}
        gains = record.gains_of(group.name)
        if gains is not None:
            found |= {prefix + name: value for name, value in gains.latest.items()}
    return found
