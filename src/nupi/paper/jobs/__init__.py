"""Independent jobs over the cores or through submitit, each result kept in a file of its own."""

from nupi.paper.jobs.job import Job, Outcome
from nupi.paper.jobs.running import JobsFailedError, are_submitted, available_cores, run, submitted, values

__all__ = [
    "Job",
    "JobsFailedError",
    "Outcome",
    "are_submitted",
    "available_cores",
    "run",
    "submitted",
    "values",
]
