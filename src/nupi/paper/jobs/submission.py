"""Independent jobs through submitit: on SLURM where there is one, else as processes of this machine.

    nupi reproduce fairness --executor submitit --executor-option slurm_partition=cpu --executor-option timeout_min=240

A job writes its own result (see `nupi.paper.jobs`), so one that outlives the command is not lost: the next run reads
what it found. A job that was killed is submitted again; one that failed by itself is reported with its log.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nupi.paper.jobs import running

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import submitit

    from nupi.paper.jobs.job import Job, Outcome

ATTEMPTS = 3  # a job that is killed this often is reported
POLL = 0.2  # seconds
DEFAULTS = {"timeout_min": 24 * 60, "cpus_per_task": 1, "name": "nupi"}
LOG_LINES = 30


def in_submitted_jobs(waiting: deque[Job], logs: Path, options: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yield an outcome for every waiting job as it finishes.

    Args:
        waiting: the jobs.
        logs: the folder of their logs.
        options: for submitit's `AutoExecutor`: `cluster`, and what its `update_parameters` takes.
    """
    executor = _executor(logs, options)
    # A cluster queues what it cannot run yet; this machine would run everything at once.
    at_once = running.available_cores() if executor.cluster == "local" else len(waiting)
    queue = [(job, 1) for job in waiting]
    submitted: list[tuple[submitit.Job[str | None], Job, int]] = []
    try:
        while queue or submitted:
            while queue and len(submitted) < at_once:
                job, attempt = queue.pop(0)
                submitted.append((executor.submit(job.attempt), job, attempt))
            finished = [each for each in submitted if each[0].done()]
            for handle, job, attempt in finished:
                submitted.remove((handle, job, attempt))
                killed = not job.path.exists() and _was_killed(handle, executor.cluster)
                if killed and attempt < ATTEMPTS:
                    queue.append((job, attempt + 1))
                    continue
                failure = None if job.path.exists() else _failure(handle, attempt, killed=killed)
                yield job.outcome(failure)
            if not finished:
                time.sleep(POLL)
    finally:
        for handle, _, _ in submitted:
            handle.cancel(check=False)


def _executor(logs: Path, options: Mapping[str, Any]) -> submitit.AutoExecutor:
    try:
        import submitit
    except ImportError:
        raise ModuleNotFoundError(
            "the executor 'submitit' needs the package of that name: pip install 'nupi[paper]'"
        ) from None
    parameters = {**DEFAULTS, **options}
    executor = submitit.AutoExecutor(folder=logs, cluster=parameters.pop("cluster", None))
    executor.update_parameters(**parameters)
    return executor


def _was_killed(job: submitit.Job[str | None], cluster: str) -> bool:
    """Whether a job ended without a word; a cluster's file system may be late with it, so submitit waits."""
    if cluster == "local":
        return not job.paths.result_pickle.exists()
    return job.exception() is not None


def _failure(job: submitit.Job[str | None], attempt: int, *, killed: bool) -> str:
    """Why a job has no result: its traceback if it has one, else that it was killed; and the end of its log."""
    why = (
        f"job {job.job_id} was killed or crashed, at attempt {attempt} of {ATTEMPTS}"
        if killed
        else job.result()
    )
    log = job.stderr() or job.stdout() or "(empty)"
    tail = "\n".join(log.splitlines()[-LOG_LINES:])
    return f"{why}\nthe end of its log, {job.paths.stderr}:\n{tail}"
