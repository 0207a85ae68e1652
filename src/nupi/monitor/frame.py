"""A record as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.monitor.numbers import NAMES

if TYPE_CHECKING:
    import pandas as pd

    from nupi.monitor.record import Record


def frame(record: Record) -> pd.DataFrame:
    """The steps kept in full: a row a step; columns `<constraint>/violation`, `<constraint>[3]/multiplier`, ..."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Monitor.frame needs pandas: pip install 'nupi[monitor]'", name="pandas"
        ) from None
    steps, columns = record.recent()
    found = {}
    for group in record.columns.groups.values():
        for name, values in zip(NAMES, record.statistics(group).values(), strict=False):
            found[f"{group.name}/{name}"] = values.tolist()
        if group.indices is not None:
            for slot in range(group.slots):
                for name, first in (
                    ("index", group.indices),
                    ("violation", group.violations),
                    ("multiplier", group.multipliers),
                ):
                    found[f"{group.name}/worst{slot}/{name}"] = columns[:, first + slot].tolist()
            continue
        for index in range(group.slots):
            found[f"{group.place(index)}/violation"] = columns[:, group.violations + index].tolist()
            found[f"{group.place(index)}/multiplier"] = columns[:, group.multipliers + index].tolist()
    return pd.DataFrame(found, index=pd.Index(steps.long().tolist(), name="step"))
