"""Record what every `ascend` does; the training loop does not change."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections import deque
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from nupi.monitor.arrival import Arrival
from nupi.monitor.columns import Columns
from nupi.monitor.diagnose import diagnose
from nupi.monitor.disk import Writer
from nupi.monitor.explain import explain
from nupi.monitor.finding import ConstraintWarning
from nupi.monitor.frame import frame
from nupi.monitor.gains import GainReader
from nupi.monitor.gradients import confirm
from nupi.monitor.info import what_runs
from nupi.monitor.log import as_log
from nupi.monitor.numbers import numbers
from nupi.monitor.record import GainHistory, Record
from nupi.monitor.report import write_report
from nupi.monitor.sampler import Sampler
from nupi.optim.warning import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from nupi.ascent.listening import Ascent
    from nupi.lagrangian import Lagrangian, Violations
    from nupi.monitor.finding import Finding
    from nupi.monitor.gains import Change

_SECONDS = 1.0  # while a run goes on, the file on disk is never older than this
# Recorded steps before the first check for severe findings, and the factor from one check to the next.
_FIRST_CHECK, _NEXT_CHECK = 200, 1.5


class Monitor:
    """Record violations, multipliers and gains of every `ascend`, and say what is wrong.

    It records from the moment it is made; the loop does not change. In a group of up to 32 constraints each one is
    recorded. Of a larger group it records statistics, and the 8 worst constraints. Memory is bounded: the last `keep`
    steps are kept in full, and the whole run is kept at a lower resolution. On an accelerator it never waits for the
    device. With many processes, only rank 0 logs, writes and warns.

    A severe finding (a constraint that diverges, oscillates or cannot be met) causes one `ConstraintWarning` during the
    run. An error inside the monitor ends the recording with a warning. It never ends the training.

    Args:
        lagrangian: the Lagrangian to record.
        dual: record the steps of this optimizer only; by default those of all.
        log: where to log the numbers: a function `(dict, step)`, a TensorBoard writer, a W&B run, the module
            `mlflow`, an MLflow client, a Lightning logger.
        every: record one of every `every` calls of `ascend`.
        keep: how many of the recorded steps to keep in full.
        path: a folder for the record, for `nupi watch` and `nupi report`.
        warn: whether to warn of severe findings during the run.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> monitor = Monitor(lagrangian)
        >>> lagrangian.ascend(dual, {"norm": torch.tensor(2.0)})
        >>> monitor.latest()["nupi/norm/multiplier"]
        0.2
        >>> monitor.diagnose()
        []
    """

    def __init__(
        self,
        lagrangian: Lagrangian,
        dual: torch.optim.Optimizer | None = None,
        *,
        log: Any = None,
        every: int = 1,
        keep: int = 10_000,
        path: str | os.PathLike[str] | None = None,
        warn: bool = True,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, but {value!r} came")
        if dual is not None and not isinstance(dual, torch.optim.Optimizer):
            raise TypeError(
                f"dual must be a torch optimizer, or None for all, but a {type(dual).__name__} came"
            )
        if not hasattr(lagrangian, "listen"):
            raise TypeError(f"lagrangian must be a nupi.Lagrangian, but a {type(lagrangian).__name__} came")
        if dual is not None and not _share(lagrangian, dual):
            raise ValueError(
                f"dual ({type(dual).__name__}) has no multiplier of this Lagrangian, so there would be nothing to "
                "record; give the optimizer that you pass to ascend"
            )
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a folder's name, a str or a path, but {path!r} came")
        self._log = None if log is None else as_log(log)
        self._dual, self._every, self._path, self._warns = dual, every, path, warn
        self._lagrangian = lagrangian
        self._begin(Record(Columns.of(lagrangian.constraints), keep, what_runs(lagrangian, dual)))
        self._count = 0
        self._mover: torch.optim.Optimizer | None = None  # the dual of the last step that was taken in
        self._started = False
        self._leads = True
        self._warned: set[str] = set()
        self._suspected: set[str] = set()  # what the last check has called infeasible
        self._handle = lagrangian.listen(self)
        if path is not None:
            atexit.register(_close, weakref.ref(self))

    def _begin(self, record: Record) -> None:
        self._record = record
        self._sampler = Sampler(record.columns)
        self._gains = GainReader(dict(self._lagrangian.named_parameters()))
        self._arrivals: deque[tuple[list[int], list[Change], Arrival]] = deque()
        self._writer: Writer | None = None
        self._row: list[float] | None = None  # the last row that was logged
        self._due, self._check = 0.0, _FIRST_CHECK

    def __call__(self, step: Ascent) -> None:
        """Take in a step. The Lagrangian calls this after every `ascend` that moved something."""
        try:
            self._take(step)
        except ConstraintWarning:
            raise  # the user has asked for warnings to be errors
        except Exception as error:  # noqa: BLE001 - a monitor never ends a training
            self._handle.remove()
            self._close_writer()
            warn_user(f"nupi.Monitor has stopped recording: {type(error).__name__}: {error}", RuntimeWarning)

    @property
    def record(self) -> Record:
        """All that has been recorded, up to the last step. Waits for the device if necessary."""
        self.flush()
        return self._record

    def latest(self) -> dict[str, float]:
        """The last numbers by name, as in a log: `nupi/<constraint>/violation` and so on."""
        columns = self.record.recent()[1]
        found: dict[str, float] = {}
        # Not every step has all constraints: take each from the last step that had it.
        rows = columns[-64:].tolist()
        for number, row in enumerate(rows):
            found |= numbers(self._record, row, rows[number - 1] if number else None)
        return found

    def diagnose(self, violations: Violations | None = None) -> list[Finding]:
        """The findings, the worst first; none if the run is healthy.

        Args:
            violations: the violations of a batch with their graph, as for the Lagrangian. With them, a constraint is
                called infeasible only if its gradient is small, or if other constraints oppose it. The graph is kept:
                you can still call `backward`.
        """
        found = diagnose(self._read())
        if not self._count:
            warn_user(
                "nupi.Monitor has seen no step of the multipliers, so there is nothing to diagnose; make it before the "
                "loop, and call lagrangian.ascend (or Coefficient.update) in each step",
                RuntimeWarning,
            )
        return (
            found
            if violations is None
            else confirm(found, self._record.columns, self._lagrangian, violations)
        )

    def explain(self, names: Sequence[str] = ()) -> str:
        """One or two sentences about these constraints from the record, for an error message.

        Empty if nothing was recorded, or if there is no severe finding and `names` is empty.
        """
        return explain(self._read(), names)

    def frame(self) -> pd.DataFrame:
        """The steps that are kept in full, as a data frame with one row for each step. Needs pandas."""
        return frame(self.record)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one HTML file: a verdict, plots, findings, a table. The file needs no network."""
        write_report(self._read(), path)

    def state_dict(self) -> dict[str, Any]:
        """The record, for a checkpoint. A resumed run then continues the same record."""
        return {"count": self._count, "record": self.record.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the record of a checkpoint, which must have the same constraints."""
        record = Record.from_state(state_dict["record"])
        if record.columns.described() != self._record.columns.described():
            raise ValueError(
                f"this record has the constraints {', '.join(map(repr, record.columns.groups))}, or other sizes; this "
                f"Lagrangian has {', '.join(map(repr, self._record.columns.groups))}"
            )
        self._close_writer()
        self._begin(record)
        self._count = int(state_dict["count"])

    def flush(self) -> None:
        """Record all steps until now. Waits for the device if necessary."""
        self._flush(warns=self._warns)

    def _read(self) -> Record:
        """The record up to the last step, without warnings: one that is an error would hide the error to explain."""
        self._flush(warns=False)
        return self._record

    def _flush(self, *, warns: bool) -> None:
        if not self._sampler.empty:
            self._block(self._mover)
        self._receive(wait=True, warns=warns)

    def close(self) -> None:
        """Record all steps until now, and stop recording."""
        self._handle.remove()
        self.flush()
        self._close_writer()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Write what waits, if the run of a function ends with the function and nobody has closed its monitor."""
        if getattr(self, "_writer", None) is not None:
            with contextlib.suppress(Exception):
                self._flush(warns=False)
                self._close_writer()

    def _take(self, step: Ascent) -> None:
        if self._dual is not None and step.dual is not self._dual:
            return
        self._count += 1
        if self._every > 1 and (self._count - 1) % self._every:
            return
        if not self._started:
            self._start()
        self._mover = step.dual
        self._gains.look(self._count, step.dual)
        full = self._sampler.take(self._count, step.moves)
        if full or self._log is not None or (self._path is not None and time.monotonic() > self._due):
            self._block(step.dual)
            self._receive(wait=False, warns=self._warns)

    def _start(self) -> None:
        self._started = True
        group = self._lagrangian.group
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._leads = torch.distributed.get_rank(group) == 0
        if not self._leads:
            self._log = self._path = None

    def _block(self, dual: torch.optim.Optimizer | None) -> None:
        """Start the copy of the waiting steps to the host."""
        if dual is not None:
            self._gains.ask(self._count, dual)
        steps, rows = self._sampler.rows()
        changes = self._gains.taken()
        held = [
            v.detach().double().mean()
            for change in changes
            for v in change.gains.values()
            if isinstance(v, torch.Tensor)
        ]
        self._arrivals.append((steps, changes, Arrival([rows, *held])))
        self._due = time.monotonic() + _SECONDS

    def _receive(self, *, wait: bool, warns: bool) -> None:
        """Add the steps to the record whose copy has arrived."""
        while self._arrivals and (wait or self._arrivals[0][2].ready()):
            steps, changes, arrival = self._arrivals.popleft()
            block, *held = arrival.result()
            rows = torch.cat([torch.tensor(steps, dtype=torch.float64)[:, None], block.double()], dim=1)
            if any(a > b for a, b in pairwise(steps)):
                rows = rows[rows[:, 0].argsort()]
            changed = self._change_gains(changes, [float(value) for value in held])
            self._to_disk(lambda _: None)  # a new file begins with the whole record so far
            self._record.add(rows)
            self._to_disk(partial(Writer.add, rows=rows, gains=changed))
            if self._log is not None:
                self._hand_over(rows.tolist())
            if warns and self._leads and len(self._record) >= self._check:
                self._check = int(_NEXT_CHECK * len(self._record))
                self._warn_of_severe()

    def _change_gains(
        self, changes: Sequence[Change], held: list[float]
    ) -> list[tuple[int, int, dict[str, float]]]:
        """Record changes of gains. Returns for each: the number of its history, the step, the gains."""
        noted = []
        numbered = {(tuple(h.names), h.kind): i for i, h in enumerate(self._record.gains)}
        for change in changes:
            number = numbered.get((change.names, change.kind))
            if number is None:
                number = numbered[change.names, change.kind] = len(self._record.gains)
                self._record.gains.append(GainHistory(list(change.names), change.kind, []))
            gains = {k: held.pop(0) if _is_tensor(v) else float(v) for k, v in change.gains.items()}
            self._record.gains[number].add(change.step, gains)
            noted.append((number, change.step, gains))
        return noted

    def _to_disk(self, write: Callable[[Writer], None]) -> None:
        """Write to disk if there is a folder. If that fails, warn once and write no more."""
        if self._path is None:
            return
        try:
            if self._writer is None:
                self._writer = Writer(self._path, self._record)
            write(self._writer)
        except OSError as error:
            self._close_writer()
            path, self._path = self._path, None
            warn_user(
                f"nupi.Monitor cannot write to {path} any more ({error}); it still records in memory",
                RuntimeWarning,
            )

    def _hand_over(self, rows: list[list[float]]) -> None:
        assert self._log is not None
        for row in rows:
            step, columns = int(row[0]), row[1:]
            try:
                self._log(numbers(self._record, columns, self._row), step)
            except Exception as error:  # noqa: BLE001 - what logs is not ours, and must not end a training
                self._log = None
                warn_user(f"nupi.Monitor logs no more: {type(error).__name__}: {error}", RuntimeWarning)
                return
            self._row = columns

    def _warn_of_severe(self) -> None:
        severe = [f for f in diagnose(self._record) if f.severity == "severe" and f.kind not in self._warned]
        # A constraint that seems infeasible early is often met later, so warn only if the next check says it again.
        suspected, self._suspected = self._suspected, {f.constraint for f in severe if f.kind == "infeasible"}
        new = [f for f in severe if f.kind != "infeasible" or f.constraint in suspected]
        if new:
            self._warned |= {finding.kind for finding in new}
            others = {finding.constraint for finding in new} - {new[0].constraint}
            more = f" ({len(others)} more: see Monitor.diagnose())" if others else ""
            warn_user(f"{new[0]}{more}", ConstraintWarning)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _share(lagrangian: Lagrangian, dual: torch.optim.Optimizer) -> bool:
    """Whether the optimizer has any of the multipliers."""
    held = {id(param) for group in dual.param_groups for param in group["params"]}
    return any(id(multiplier) in held for multiplier in lagrangian.parameters())


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _close(reference: weakref.ref[Monitor]) -> None:
    """Record the last steps at the end of the program."""
    monitor = reference()
    if monitor is not None and not monitor._arrivals:
        monitor.close()
