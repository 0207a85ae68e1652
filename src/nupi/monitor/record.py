"""The record of a run, of bounded size on the host: the last steps in full, the whole run at low resolution."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nupi.monitor.columns import STATISTICS, Columns, Group
from nupi.monitor.thinned import Overview, Thinned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION = 1
_CELLS = 2**23  # the most numbers (64 MB) for the last steps; with many columns fewer steps are kept
_LEAST = 256
_GAINS = 1024  # the most changes kept in one history of gains


class Series(NamedTuple):
    """The run of one constraint: at each of `steps` its `violation`, and the `multiplier` after that step."""

    group: Group
    index: int  # type: ignore[assignment] # a tuple's own method of that name is not needed
    steps: torch.Tensor
    violation: torch.Tensor
    multiplier: torch.Tensor

    @property
    def place(self) -> str:
        """The name of the constraint, with its index if its group has several."""
        return self.group.place(self.index)


class GainHistory:
    """The gains of some constraints, each time that they changed."""

    def __init__(self, names: list[str], kind: str, changes: list[tuple[int, dict[str, float]]]) -> None:
        self.names, self.kind, self.changes = names, kind, changes

    def add(self, step: int, gains: dict[str, float]) -> None:
        """Add new gains. If there are too many changes, every other one is dropped."""
        if self.changes and self.changes[-1][1] == gains:
            return
        self.changes.append((step, gains))
        if len(self.changes) > _GAINS:
            self.changes = self.changes[::2] + self.changes[-1:]

    @property
    def latest(self) -> dict[str, float]:
        """The gains now."""
        return self.changes[-1][1] if self.changes else {}


class Record:
    """The record of a run.

    Args:
        columns: the columns of a row.
        keep: how many of the last steps to keep in full.
        info: what was run: versions, the problem, the optimizer.

    Example:
        >>> from nupi.monitor import Played, replay
        >>> violation, multiplier = torch.tensor([[2.0], [1.0]]), torch.tensor([[0.2], [0.3]])
        >>> record = replay({"norm": Played(violation, multiplier)})  # `nupi.monitor.read` makes one of a file
        >>> [norm] = record.series(record.columns.groups["norm"])
        >>> norm.steps.tolist(), norm.violation.tolist(), norm.multiplier.tolist()
        ([1.0, 2.0], [2.0, 1.0], [0.2, 0.3])
    """

    def __init__(self, columns: Columns, keep: int, info: Mapping[str, Any] | None = None) -> None:
        self.columns, self.keep = columns, keep
        self.info: dict[str, Any] = dict(info or {})
        self.gains: list[GainHistory] = []
        self.rows_in_full = min(keep, max(_LEAST, _CELLS // (columns.count + 1)))
        self._rows = torch.empty(min(128, 2 * self.rows_in_full), columns.count + 1, dtype=torch.float64)
        self._used = self._absorbed = 0  # rows filled, and rows that the thinned run has already
        self._thinned = Thinned(columns.count)

    def __len__(self) -> int:
        """How many steps have been recorded, including those no longer kept in full."""
        return self._thinned.total + self._used - self._absorbed

    @property
    def last_step(self) -> int:
        """The number of the last recorded step, 0 if there is none."""
        return int(self._rows[self._used - 1, 0]) if self._used else 0

    def add(self, rows: torch.Tensor) -> None:
        """Add rows, in the order of their steps. The first column is the step."""
        for some in rows.split(self.rows_in_full):
            if self._used + len(some) > len(self._rows):
                self._make_room(len(some))
            self._rows[self._used : self._used + len(some)] = some
            self._used += len(some)

    def recent(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The steps that are kept in full, (n,), and their columns, (n, columns)."""
        kept = self._rows[max(0, self._used - self.rows_in_full) : self._used]
        return kept[:, 0], kept[:, 1:]

    def overview(self) -> Overview:
        """The whole run, thinned out evenly."""
        self._absorb()
        return self._thinned.overview()

    def series(self, group: Group) -> Iterator[Series]:
        """The series of each constraint of a group that was recorded by itself, over the steps kept in full."""
        steps, columns = self.recent()
        e = columns[:, group.violations : group.violations + group.slots]
        theta = columns[:, group.multipliers : group.multipliers + group.slots]
        if group.indices is None:
            for index in range(group.slots):
                yield _seen(group, index, steps, e[:, index], theta[:, index])
            return
        for index, places in _places(columns[:, group.indices : group.indices + group.slots]).items():
            when = torch.cat([steps[rows] for rows, _ in places])
            of_index = (torch.cat([t[rows, slot] for rows, slot in places]) for t in (e, theta))
            yield _seen(group, index, when, *of_index)

    def statistics(self, group: Group) -> dict[str, torch.Tensor]:
        """The statistics of a group over the steps kept in full, by name; none if it is a single constraint."""
        if group.statistics is None:
            return {}
        columns = self.recent()[1]
        return {name: columns[:, group.statistics + i] for i, name in enumerate(STATISTICS)}

    def gains_of(self, name: str) -> GainHistory | None:
        """The gains of a group of constraints, or None if none were recorded."""
        return next((gains for gains in reversed(self.gains) if name in gains.names), None)

    def state_dict(self) -> dict[str, Any]:
        """The record as plain data and tensors."""
        self._absorb()
        kept = self._rows[max(0, self._used - self.rows_in_full) : self._used]
        return {
            "version": VERSION,
            "columns": self.columns.described(),
            "keep": self.keep,
            "info": self.info,
            "gains": [[gains.names, gains.kind, gains.changes] for gains in self.gains],
            "rows": kept.clone(),
            "thinned": self._thinned.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Record:
        """The record of a `state_dict`."""
        version = state.get("version")
        if version != VERSION:
            raise ValueError(
                f"this record has version {version!r}, but this nupi reads version {VERSION}; "
                "open it with the nupi that wrote it"
            )
        record = cls(Columns.from_described(state["columns"]), state["keep"], state["info"])
        record.gains = [
            GainHistory(list(names), kind, [(step, dict(gains)) for step, gains in changes])
            for names, kind, changes in state["gains"]
        ]
        record.add(state["rows"])
        record._thinned.load(state["thinned"])
        record._absorbed = record._used
        return record

    def _absorb(self) -> None:
        if self._absorbed < self._used:
            self._thinned.add(self._rows[self._absorbed : self._used])
            self._absorbed = self._used

    def _make_room(self, more: int) -> None:
        """Grow up to twice the rows to keep; then drop the oldest rows."""
        largest = 2 * self.rows_in_full
        if len(self._rows) < largest:
            grown = self._rows.new_empty(
                min(largest, max(2 * len(self._rows), self._used + more)), self._rows.shape[1]
            )
            grown[: self._used] = self._rows[: self._used]
            self._rows = grown
        if self._used + more > len(self._rows):
            self._absorb()
            kept = self._rows[self._used - self.rows_in_full : self._used].clone()
            self._used = self._absorbed = len(kept)
            self._rows[: self._used] = kept


def _places(which: torch.Tensor) -> dict[int, list[tuple[slice, int]]]:
    """By constraint index, where it was recorded: ranges of rows, and its slot in each.

    The recorded constraints change at most once per block of steps. So there are few ranges, each read once.
    """
    which = which.nan_to_num(nan=-1.0)
    changes = (which[1:] != which[:-1]).any(1).nonzero().flatten().add_(1).tolist()
    places: dict[int, list[tuple[slice, int]]] = {}
    for start, stop in pairwise([0, *changes, len(which)] if len(which) else []):
        for slot, index in enumerate(which[start].tolist()):
            if index >= 0:
                places.setdefault(int(index), []).append((slice(start, stop), slot))
    return dict(sorted(places.items()))


def _seen(
    group: Group, index: int, steps: torch.Tensor, violation: torch.Tensor, multiplier: torch.Tensor
) -> Series:
    seen = ~violation.isnan()
    if bool(seen.all()):
        return Series(group, index, steps, violation, multiplier)
    return Series(group, index, steps[seen], violation[seen], multiplier[seen])
