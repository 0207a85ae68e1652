"""Pass numbers to the user's logger: a function, TensorBoard, W&B, MLflow, a Lightning logger."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Log: TypeAlias = Callable[[Mapping[str, float], int], object]


def as_log(log: Any) -> Log:
    """Make a function of `(numbers by name, step)` that logs with `log`.

    Args:
        log: such a function, or an object with `add_scalar` (TensorBoard's SummaryWriter), `log_metrics` (the module
            `mlflow`, a Lightning logger) or `log` (a W&B run). Or an `MlflowClient`, which logs to the active run, or a
            pair of it and a run's id.
    """
    if isinstance(log, tuple) and len(log) == 2 and hasattr(log[0], "log_batch"):
        return _mlflow(log[0], str(log[1]))
    if hasattr(log, "add_scalar"):
        return _tensorboard(log)
    if hasattr(log, "log_metrics"):
        return _metrics(log)
    if hasattr(log, "log_batch"):
        return _mlflow(log, None)
    if hasattr(log, "log") and callable(log.log):
        return lambda numbers, step: log.log(dict(numbers), step=step)
    if callable(log):
        function: Log = log
        return function
    raise TypeError(
        f"log must be a function of (dict, step), or have add_scalar, log_metrics or log, but {log!r} came"
    )


def _tensorboard(writer: Any) -> Log:
    def log(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return log


def _metrics(logger: Any) -> Log:
    names: dict[str, str] = {}
    # MLflow refuses a whole call if one name has a character that it does not allow.
    mlflow = getattr(logger, "__name__", "") == "mlflow"

    def log(numbers: Mapping[str, float], step: int) -> None:
        metrics = {_plain(name, names) if mlflow else name: value for name, value in numbers.items()}
        logger.log_metrics(metrics, step=step)

    return log


def _mlflow(client: Any, run: str | None) -> Log:
    import mlflow
    from mlflow.entities import Metric

    if run is None:
        active = mlflow.active_run()
        if active is None:
            raise ValueError("log is an MlflowClient, but no run is active; give log=(client, run_id)")
        run = str(active.info.run_id)
    names: dict[str, str] = {}

    def log(numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name, names), value, now, step) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):  # the most that one call takes
            client.log_batch(run, metrics=metrics[start : start + 1000])

    return log


def _plain(name: str, known: dict[str, str]) -> str:
    """The name with underscores for the characters that MLflow does not allow."""
    plain = known.get(name)
    if plain is None:
        plain = known[name] = re.sub(r"[^\w./ :-]", "_", name)
    return plain


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers without those that are not finite, which were not measured."""
    return {name: value for name, value in numbers.items() if not math.isnan(value)}
