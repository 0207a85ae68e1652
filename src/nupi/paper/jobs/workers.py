"""Processes of this machine that do jobs, one at a time each; none outlives the command."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator
    from multiprocessing.context import SpawnProcess

    from nupi.paper.jobs.job import Job, Outcome

CONTEXT = multiprocessing.get_context("spawn")  # how processes start


@dataclass
class Worker:
    """A process, our end of its pipe, and the job it is at."""

    process: SpawnProcess
    pipe: Connection
    job: Job | None = None

    def give(self, job: Job) -> None:
        """Let it do this job."""
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # the process is gone: waiting for its answer will tell
            self.pipe.send(job)

    def dismiss(self) -> None:
        """Let it end."""
        self.pipe.send(None)
        self.pipe.close()
        self.process.join()


def in_processes(waiting: deque[Job], count: int) -> Iterator[Outcome]:
    """Yield an outcome for every waiting job as it finishes, with so many processes at once."""
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count:
                workers.append(start())
                workers[-1].give(waiting.popleft())
            for pipe in wait([worker.pipe for worker in workers]):
                worker = next(each for each in workers if each.pipe is pipe)
                job = worker.job
                assert job is not None
                try:
                    failure = worker.pipe.recv()
                except (EOFError, OSError):  # the process is gone, and the job with it
                    worker.process.join()
                    failure = f"its process died with exit code {worker.process.exitcode}"
                    workers.remove(worker)
                else:
                    if waiting:
                        worker.give(waiting.popleft())
                    else:
                        workers.remove(worker)
                        worker.dismiss()
                yield job.outcome(failure)
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


def start() -> Worker:
    """A new process that waits for its first job."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def _work(pipe: Connection) -> None:
    """A worker's life: take a job, do it, keep its result, say so; until there are no more, or no parent."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        while (job := pipe.recv()) is not None:
            pipe.send(job.attempt())
    except (EOFError, BrokenPipeError, KeyboardInterrupt):  # whoever asked is gone
        sys.exit(1)


def _leave_with_parent() -> None:
    """End this process when the one that asked for it is gone, however it went: nobody waits for the job."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
