"""Independent jobs over the cores, each result kept in a file of its own.

A job is a function of a module and the keyword arguments it is called with. Its result (numbers, strings,
tensors, and lists and dictionaries of them) is written by the process that computed it, whole or not at all,
under a name made from the arguments. So a run that was killed is continued by running it again: what was
finished is read, the rest is computed. A job that fails or whose process dies is reported and does not
sink the others.

    outcomes = jobs.run(train, [{"seed": seed, "nu": nu} for nu in (0.0, 0.9) for seed in range(5)], folder)
    values = jobs.values(run.progress(outcomes, "training", total=10))
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from nupi.paper.jobs import workers as processes
from nupi.paper.jobs.job import Function, Job, Outcome, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_executor: dict[str, Any] | None = None  # options for submitit, or None for processes of our own


class JobsFailedError(RuntimeError):
    """Some jobs failed; the message has the traceback of each. What the others found is kept."""


def run(
    function: Function,
    jobs: Iterable[Settings],
    folder: Path,
    *,
    version: str = "1",
    workers: int | None = None,
    shared: Settings | None = None,
) -> Iterator[Outcome]:
    """Yield an outcome for every job, cached ones first and then as they finish.

    Args:
        function: defined at the top of a module, so that another process can import it.
        jobs: the keyword arguments of each call, in JSON's types.
        folder: where the results are kept, one file a job.
        version: part of every file's name; change it when the function computes something else.
        workers: processes at once, each with one thread; as many as there are cores unless given. With 1
            the jobs run in this process.
        shared: further keyword arguments of every call that have no part in the name, such as where an input lies.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: at least 1 process must do the work")
    waiting: deque[Job] = deque()
    for job in (Job(function, dict(settings), folder, version, shared) for settings in jobs):
        if (found := job.kept()) is not None:
            yield found
        else:
            waiting.append(job)
    count = min(len(waiting), workers or available_cores())
    if waiting and _executor is not None:
        from nupi.paper.jobs import submission

        yield from submission.in_submitted_jobs(waiting, folder / "logs", _executor)
    elif count <= 1:
        for job in waiting:
            yield job.outcome(job.attempt())
    else:
        yield from processes.in_processes(waiting, count)


@contextlib.contextmanager
def submitted(options: Mapping[str, Any]) -> Iterator[None]:
    """Within it jobs go through submitit (see `nupi.paper.jobs.submission`), with these options."""
    global _executor
    before, _executor = _executor, dict(options)
    try:
        yield
    finally:
        _executor = before


def are_submitted() -> bool:
    """Whether jobs go through submitit, so that they may run on other machines than this."""
    return _executor is not None


def values(outcomes: Iterable[Outcome]) -> list[tuple[dict[str, Any], Any]]:
    """Settings and value of every job, once all are done.

    Raises:
        JobsFailedError: at least one failed. Raised after the last, so nothing that could be had is lost.
    """
    every = list(outcomes)
    if failed := [outcome for outcome in every if outcome.failure]:
        reports = "\n".join(f"{outcome.settings}:\n{outcome.failure}" for outcome in failed)
        raise JobsFailedError(
            f"{len(failed)} of {len(every)} jobs failed; the others are kept and not run again.\n{reports}"
        )
    return [(outcome.settings, outcome.value) for outcome in every]


def available_cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
