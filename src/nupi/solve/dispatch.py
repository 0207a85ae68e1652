"""Run the chunks of a sweep in this process, or on the workers of an executor.

Chunks are sent and returned as bytes, so that any executor can carry them. An error inside a chunk is returned and
raised here. An error of the executor itself means that a worker was lost; then its chunk is sent again.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from nupi.solve.chunk import Plan, run_chunk
from nupi.solve.native import Native
from nupi.solve.threads import threads_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nupi.solve.program import Setting

LOSSES = 3  # how often a chunk is sent again after its worker was lost
# Workers that are threads of one process take turns: a chunk uses all cores, and only one can trace.
_TURN = Lock()
_POLL = 0.1  # seconds between two checks of jobs that have no way to wait for them


class Executor(Protocol):
    """Runs functions elsewhere: any `concurrent.futures.Executor`, or one of submitit's, whose jobs are similar."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Start a call; returns a job with `done()` and `result()`."""


class LostWorkerError(RuntimeError):
    """The executor has lost the worker of the same chunk too often."""


class Done(NamedTuple):
    """A finished chunk."""

    number: int
    results: dict[str, torch.Tensor]
    engine: str


def run_here(
    plan: Plan, jobs: dict[int, list[Setting]], native: Native, tick: Callable[[int], None]
) -> Iterator[Done]:
    """Run chunks one after another, each on all cores."""
    for number, settings in jobs.items():
        with threads_for(plan.problem.size * len(settings), plan.problem.device):
            results = run_chunk(plan, settings, tick, None if plan.compiled else native)
        yield Done(number, results, "compiled by torch" if plan.compiled else native.engine)


def run_elsewhere(plan: Plan, jobs: dict[int, list[Setting]], executor: Executor) -> Iterator[Done]:
    """Run chunks on an executor; yields each when it has finished.

    Args:
        plan: the sweep.
        jobs: the settings of each chunk by its number.
        executor: an executor with any number of workers.

    Raises:
        TypeError: if the functions of the problem cannot be sent.
        LostWorkerError: if a chunk has lost its worker more than `LOSSES` times.
    """
    payload = pack(plan)
    packed = {number: pack(settings) for number, settings in jobs.items()}
    losses = dict.fromkeys(jobs, 0)
    waiting: dict[int, Any] = {}
    spare: ProcessPoolExecutor | None = None
    current: Executor = executor
    try:
        todo = list(jobs)
        while todo or waiting:
            try:
                while todo:
                    waiting[todo[0]] = current.submit(run_remotely, payload, packed[todo[0]])
                    del todo[0]
            except BrokenExecutor as error:  # it broke while chunks were being sent
                lost: dict[int, BaseException] = dict.fromkeys([*waiting, *todo], error)
                todo, waiting = [], {}
            else:
                lost = {}
                for number in _finished(waiting):
                    try:
                        found = waiting.pop(number).result()
                    except Exception as error:  # noqa: BLE001, PERF203 - executors have errors of their own for this
                        lost[number] = error
                    else:
                        yield _unpack(number, found)
            if any(isinstance(error, BrokenExecutor) for error in lost.values()):
                # A broken pool has lost all its chunks, and accepts no more.
                lost |= dict.fromkeys(waiting, next(iter(lost.values())))
                waiting = {}
                if spare is not None:
                    spare.shutdown(wait=False, cancel_futures=True)
                current = spare = _another(executor, lost)
            _count(losses, lost, executor)
            todo += lost
    finally:
        for job in waiting.values():
            if hasattr(job, "cancel"):
                job.cancel()
        if spare is not None:
            spare.shutdown(wait=False, cancel_futures=True)


def run_remotely(payload: bytes, settings: bytes) -> bytes:
    """Run one chunk in a worker. Returns as bytes its results or its error, and the engine that ran it."""
    try:
        with _TURN:
            plan, native = _received(payload)
            chunk: list[Setting] = pickle.loads(settings)  # noqa: S301 - from the process that started the sweep
            before = torch.get_num_threads()
            # One thread: the workers of a pool share a machine, and a forked one must not start torch's own threads.
            torch.set_num_threads(native.workers)
            try:
                done = next(run_here(plan, {0: chunk}, native, lambda _: None))
            finally:
                torch.set_num_threads(before)
    except Exception as error:  # noqa: BLE001 - it is raised where the sweep was called
        return _portable(error)
    return pickle.dumps((done.results, done.engine, None))


@lru_cache(maxsize=2)
def _received(payload: bytes) -> tuple[Plan, Native]:
    """The plan and its kernels, which stay compiled for later chunks in this worker."""
    plan: Plan = pickle.loads(payload)  # noqa: S301 - from the process that started the sweep
    shared = multiprocessing.parent_process() is not None
    return plan, Native(1 if shared else torch.get_num_threads(), plan.steps, recorded=bool(plan.history))


def pack(value: Any) -> bytes:
    """Pickle a value, with cloudpickle if it is installed, which can also pickle lambdas."""
    try:
        import cloudpickle
    except ImportError:
        pickler: Any = pickle
    else:
        pickler = cloudpickle
    try:
        packed: bytes = pickler.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "" if pickler is not pickle else ", or install cloudpickle, which sends lambdas as well"
        raise TypeError(
            "executor: the sweep cannot be sent to workers, because a part of it cannot be pickled; define its "
            f"functions and optimizers at the top of a module{remedy}. pickle says: {error}"
        ) from error
    return packed


def _portable(error: Exception) -> bytes:
    try:
        packed = pickle.dumps((None, "", error))
        pickle.loads(packed)  # noqa: S301 - what was just written
    except Exception:  # noqa: BLE001 - an error of a class that cannot travel
        return pickle.dumps((None, "", RuntimeError(f"{type(error).__name__}: {error}")))
    return packed


def _unpack(number: int, found: bytes) -> Done:
    results, engine, error = pickle.loads(found)  # noqa: S301 - from a worker of this sweep
    if error is not None:
        raise error
    return Done(number, results, engine)


def _finished(waiting: dict[int, Any]) -> list[int]:
    """The numbers of the jobs that have ended; waits until there is at least one."""
    if all(isinstance(job, Future) for job in waiting.values()):
        wait(waiting.values(), return_when=FIRST_COMPLETED)
    while True:
        ended = [number for number, job in waiting.items() if job.done()]
        if ended:
            return ended
        time.sleep(_POLL)


def _another(executor: Executor, lost: dict[int, BaseException]) -> ProcessPoolExecutor:
    """A new pool like the broken one: Python's own accepts no more work after it has lost a worker."""
    if not isinstance(executor, ProcessPoolExecutor):
        raise LostWorkerError(
            f"the executor is broken, with {len(lost)} chunks to do; give sweep() a new one, and checkpoint= to "
            "continue where it stopped"
        ) from next(iter(lost.values()))
    given: Any = executor
    return ProcessPoolExecutor(
        given._max_workers, given._mp_context, initializer=given._initializer, initargs=given._initargs
    )


def _count(losses: dict[int, int], lost: dict[int, BaseException], executor: Executor) -> None:
    """Count a loss for each chunk that may have caused it. Raise if one has caused too many."""
    broken = isinstance(executor, ProcessPoolExecutor)
    suspects: Sequence[int] = list(lost)
    if broken:  # only chunks that the pool's workers had begun can be the cause
        suspects = suspects[: getattr(executor, "_max_workers", 1) + 1]
    for number in suspects:
        losses[number] += 1
        if losses[number] > LOSSES:
            raise LostWorkerError(
                f"chunk {number} of the sweep was lost with its worker {losses[number]} times; the last error was "
                f"{lost[number]!r}. Give it more memory or a smaller chunk=, and checkpoint= to keep what is done"
            ) from lost[number]
