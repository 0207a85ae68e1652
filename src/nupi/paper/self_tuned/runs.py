"""One run of one task with one method, as a job: the numbers it is judged by."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

import nupi
from nupi.paper.self_tuned import blind, networks, quadratics, seen, steep, unseen
from nupi.paper.self_tuned.constants import changed
from nupi.paper.self_tuned.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.paper.self_tuned.task import Task

VERSION = "6"
"""Change it when a run computes something else: results that were kept under another one are not used."""

TASKS: dict[str, Callable[..., Task]] = {
    "svm": quadratics.svm_cell,
    "program": quadratics.quadratic_program,
    "plane": quadratics.plane_start,
    "network": networks.network,
    "autoencoder": seen.autoencoder,
    "wine": seen.wine,
    "tumours": unseen.tumours,
    "diabetes": unseen.diabetes,
    "codes": blind.codes,
    "light digits": blind.light_digits,
    "steep": steep.steep,
}


def solve(
    *, task: str, method: str, constants: dict[str, float] | None = None, **settings: Any
) -> dict[str, Any]:
    """Train once: multipliers first, then the model.

    Args:
        task: one of `TASKS`.
        method: one of `METHODS`.
        constants: of `SelfTuned`, by name, to be taken in place of its own.
        settings: of the task.

    Returns:
        The task's own numbers, and the largest multiplier of the run.
    """
    torch.set_num_threads(1)
    with changed(constants):
        return _train(TASKS[task](**settings), method)


def follow(*, name: str, method: str, every: int = 10) -> dict[str, Any]:
    """One cell of the SVM: its numbers, and the distance of its multipliers to lambda* every so many steps."""
    torch.set_num_threads(1)
    path: list[float] = []

    def see(step: int, lagrangian: nupi.Lagrangian) -> None:
        if step % every == 0:
            path.append(_distance(name, lagrangian))

    return {**_train(quadratics.svm_cell(name), method, see), "path": path}


def _train(
    task: Task, name: str, see: Callable[[int, nupi.Lagrangian], None] | None = None
) -> dict[str, Any]:
    method = METHODS[name]
    groups = {each: method.constraint(constraint) for each, constraint in task.constraints.items()}
    lagrangian = nupi.Lagrangian(groups, penalty=method.penalty)
    dual = method.dual(lagrangian.parameters(), task)
    largest = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that T is too short is one of the cases
        try:
            for step in range(task.steps):
                loss, violations = task.evaluate()
                if see is not None:
                    see(step, lagrangian)
                if step % task.dual_every == 0:
                    lagrangian.ascend(dual, violations if task.measure is None else task.measure())
                lagrangian(loss, violations).backward()
                task.primal.step()
                task.primal.zero_grad()
                if step % 25 == 0:
                    largest = max(largest, *(float(m.abs().max()) for m in lagrangian.multipliers.values()))
        except (nupi.NonFiniteViolationError, nupi.NonFiniteMultiplierError):
            return {"violation": 1e9, "multiplier": 1e9, "diverged": True}
    found = {**task.judge(), "multiplier": largest}
    if task.name.startswith("SVM"):
        found["lambda"] = _distance(task.name.removeprefix("SVM, "), lagrangian)
    return {key: value if math.isfinite(value) else 1e9 for key, value in found.items()}


def _distance(cell: str, lagrangian: nupi.Lagrangian) -> float:
    """How far the multipliers of a cell are from lambda*, in the paper's unit."""
    from nupi.paper.svm.problem import svm

    _, _, unit = quadratics.CELLS[cell]
    return float(svm().distance(unit * lagrangian.multipliers["margin"]))
