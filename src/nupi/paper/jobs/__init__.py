"""Independent jobs over the cores or through submitit, each result kept in a file of its own."""

from nupi.paper.jobs.running import (
    JobsFailedError,
    Outcome,
    are_submitted,
    available_cores,
    progress_path,
    read,
    result_path,
    run,
    submitted,
    values,
    write,
)

__all__ = [
    "JobsFailedError",
    "Outcome",
    "are_submitted",
    "available_cores",
    "progress_path",
    "read",
    "result_path",
    "run",
    "submitted",
    "values",
    "write",
]
