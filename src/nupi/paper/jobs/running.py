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
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import threading
import traceback
import zipfile
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

Settings: TypeAlias = "Mapping[str, Any]"
Function: TypeAlias = "Callable[..., Any]"

_executor: dict[str, Any] | None = None  # options for submitit, or None for processes of our own


class JobsFailedError(RuntimeError):
    """Some jobs failed; the message has the traceback of each. What the others found is kept."""


@dataclass(frozen=True)
class Outcome:
    """What became of one job: its value, or else why there is none."""

    settings: dict[str, Any]
    value: Any = None
    failure: str | None = None
    cached: bool = False


@dataclass
class _Worker:
    """A process, our end of its pipe, and the job it is at."""

    process: SpawnProcess
    pipe: Connection
    job: dict[str, Any] = field(default_factory=dict)


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
    if shared:
        function = functools.partial(function, **shared)
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: at least 1 process must do the work")
    folder.mkdir(parents=True, exist_ok=True)
    waiting: deque[dict[str, Any]] = deque()
    for settings in map(dict, jobs):
        path = result_path(folder, function, settings, version)
        if (found := read(path)) is not None and "value" in found:
            yield Outcome(settings, found["value"], cached=True)
        else:
            waiting.append(settings)
    count = min(len(waiting), workers or available_cores())
    if waiting and _executor is not None:
        from nupi.paper.jobs import submission

        yield from submission.in_submitted_jobs(function, waiting, folder, version, _executor)
    elif count <= 1:
        for settings in waiting:
            path = result_path(folder, function, settings, version)
            yield outcome_of(settings, path, attempt(function, settings, path))
    else:
        yield from _in_processes(function, waiting, folder, version, count)


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


def result_path(folder: Path, function: Function, settings: Settings, version: str) -> Path:
    """The file a job's result is kept in: readable in front, exact behind."""
    if isinstance(function, functools.partial):  # what is shared has no part in the name
        function = function.func
    exact = json.dumps(
        [function.__module__, function.__qualname__, version, dict(settings)], sort_keys=True, allow_nan=False
    )
    digest = hashlib.sha256(exact.encode()).hexdigest()[:16]
    readable = "-".join(
        f"{key}{value}" for key, value in settings.items() if isinstance(value, int | float | str)
    )
    clean = "".join(c if c.isalnum() or c in "-._" else "_" for c in readable)[:80]
    return folder / f"{function.__name__}-{clean}-{digest}.pt"


def progress_path(result: Path) -> Path:
    """Where a long job may keep how far it is; it goes once the result is there."""
    return result.with_suffix(".progress")


def available_cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_processes(
    function: Function, waiting: deque[dict[str, Any]], folder: Path, version: str, count: int
) -> Iterator[Outcome]:
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count:
                workers.append(_start(function, folder, version))
                _give(workers[-1], waiting.popleft())
            for pipe in wait([worker.pipe for worker in workers]):
                worker = next(each for each in workers if each.pipe is pipe)
                path = result_path(folder, function, worker.job, version)
                try:
                    failure = worker.pipe.recv()
                except (EOFError, OSError):  # the process is gone, and the job with it
                    worker.process.join()
                    failure = f"its process died with exit code {worker.process.exitcode}"
                    workers.remove(worker)
                else:
                    if not waiting:
                        workers.remove(worker)
                        _dismiss(worker)
                outcome = outcome_of(worker.job, path, failure)
                if worker in workers:
                    _give(worker, waiting.popleft())
                yield outcome
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def _start(function: Function, folder: Path, version: str) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function, folder, version), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, job: dict[str, Any]) -> None:
    worker.job = job
    with contextlib.suppress(BrokenPipeError):  # the process is gone: waiting for its answer will tell
        worker.pipe.send(job)


def _dismiss(worker: _Worker) -> None:
    worker.pipe.send(None)
    worker.pipe.close()
    worker.process.join()


def _work(pipe: Connection, function: Function, folder: Path, version: str) -> None:
    """A worker's life: take a job, do it, keep its result, say so; until there are no more, or no parent."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        while (settings := pipe.recv()) is not None:
            pipe.send(attempt(function, settings, result_path(folder, function, settings, version)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):  # whoever asked is gone
        sys.exit(1)


def _leave_with_parent() -> None:
    """End this process when the one that asked for it is gone, however it went: nobody waits for the job."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def attempt(function: Function, settings: dict[str, Any], path: Path) -> str | None:
    """Do the job, on one thread whatever the machine, and keep its result; the traceback if it fails."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        write(path, {"value": function(**settings)})
        progress_path(path).unlink(missing_ok=True)
    except Exception:  # noqa: BLE001 - whatever went wrong is one job's, and is reported as such
        return traceback.format_exc()
    finally:
        torch.set_num_threads(threads)
    return None


def outcome_of(settings: dict[str, Any], path: Path, failure: str | None) -> Outcome:
    """What became of a job that is over: its failure, or what its file holds."""
    if failure is not None:
        return Outcome(settings, failure=failure)
    found = read(path)
    if found is None or "value" not in found:
        return Outcome(settings, failure=f"its result {path} was written but cannot be read back")
    return Outcome(settings, found["value"])


def write(path: Path, content: dict[str, Any]) -> None:
    """Keep this in a file, whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        torch.save(content, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any] | None:
    """What the file holds; None if there is no file or it is damaged, so that the job is done again."""
    try:
        with zipfile.ZipFile(
            path
        ) as archive:  # torch's format, whose checksums torch itself does not compare
            whole = archive.testzip() is None
        found = torch.load(path, weights_only=True) if whole else None
    except Exception:  # noqa: BLE001 - whatever a damaged file makes of the reader
        return None
    return found if isinstance(found, dict) else None
