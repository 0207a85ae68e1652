"""Make a record of runs that another program has recorded, so that one report shows them side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nupi.constraints import Equality, Inequality
from nupi.monitor.columns import Columns
from nupi.monitor.record import GainHistory, Record
from nupi.monitor.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Played:
    """The violations and multipliers of one run.

    Args:
        violation: the violations, (records, constraints).
        multiplier: the multipliers after each step, of the same shape.
        inequality: whether the multipliers are kept at 0 or above.
        dual: the name of its dual optimizer.
        gains: the gains of the dual optimizer, such as `ki` and `kp`.

    Example:
        >>> from nupi.monitor import diagnose
        >>> t = torch.arange(400.0)[:, None] / 8
        >>> run = Played(t.cos(), t.sin(), inequality=False, dual="NuPI", gains={"ki": 0.125, "kp": 0.0})
        >>> [finding] = diagnose(replay({"sum": run}))
        >>> finding.kind, finding.advice
        ('oscillating', 'Kp is 0: raise it to about 1.99')
    """

    violation: torch.Tensor
    multiplier: torch.Tensor
    inequality: bool = True
    dual: str = ""
    gains: Mapping[str, float] = field(default_factory=dict)


class _Move(NamedTuple):
    name: str
    multiplier: torch.Tensor
    error: torch.Tensor
    rows: None = None


def replay(
    runs: Mapping[str, Played], steps: Sequence[int] | None = None, info: Mapping[str, Any] | None = None
) -> Record:
    """Make one record of several runs, with one group of constraints for each run.

    Args:
        runs: the runs, by the name that the report shows.
        steps: the step of each record, the same for all runs; by default 1, 2, 3, ...
        info: what was run, for the report.

    Example:
        >>> t = torch.arange(400.0)[:, None]
        >>> record = replay({"ki = 0.125": Played(torch.cos(t / 8), torch.sin(t / 8), inequality=False)})
        >>> len(record), record.last_step
        (400, 400)
    """
    lengths = {len(each) for run in runs.values() for each in (run.violation, run.multiplier)}
    if len(lengths) != 1 or (steps is not None and len(steps) not in lengths):
        raise ValueError(f"all runs and steps must be of one length, but lengths {sorted(lengths)} came")
    kinds = {
        name: (Inequality if run.inequality else Equality)(run.violation[0].numel())
        for name, run in runs.items()
    }
    record = Record(Columns.of(kinds), keep=10_000, info=info)
    record.gains = [
        GainHistory([name], run.dual, [(0, dict(run.gains))]) for name, run in runs.items() if run.dual
    ]
    sampler = Sampler(record.columns)
    for i, step in enumerate(steps if steps is not None else range(1, lengths.pop() + 1)):
        moves = [
            _Move(name, run.multiplier[i].reshape(-1), run.violation[i].reshape(-1))
            for name, run in runs.items()
        ]
        if sampler.take(int(step), moves):
            _add(record, sampler)
    if not sampler.empty:
        _add(record, sampler)
    return record


def _add(record: Record, sampler: Sampler) -> None:
    steps, rows = sampler.rows()
    record.add(torch.cat([torch.tensor(steps, dtype=torch.float64)[:, None], rows.double().cpu()], dim=1))
