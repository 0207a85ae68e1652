"""Runs of the tasks with SelfTuned and with gains set by hand, one row of numbers each."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

import nupi
from nupi.paper.self_tuned import networks, quadratics, seen, unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nupi.paper.self_tuned.task import Task

VERSION = "1"
"""Change it when a run computes something else: results that were kept under another one are not used."""

GRID = (0.001, 0.01, 0.1, 1.0)
"""Step sizes of gradient ascent, of which the best is shown."""

Build = "Callable[[Any, Task], torch.optim.Optimizer]"
# ruff: noqa: ARG005 - a method may do without the task
METHODS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SelfTuned": lambda params, task: nupi.SelfTuned(
        params, task.steps / task.dual_every / 4, primal=task.primal
    ),
    "SelfTuned, identified": lambda params, task: nupi.SelfTuned(params, task.steps / task.dual_every / 4),
    **{f"gradient ascent {ki:g}": (lambda params, task, ki=ki: nupi.NuPI(params, ki=ki)) for ki in GRID},
    "nuPI 0.03, 5": lambda params, task: nupi.NuPI(params, ki=0.03, kp=5.0, init="bumpless"),
    "nuPI 0.03, 5, 0.9": lambda params, task: nupi.NuPI(params, ki=0.03, kp=5.0, nu=0.9, init="bumpless"),
    "PID 0.01, 0.1, 0.01": lambda params, task: nupi.PID(params, ki=0.01, kp=0.1, kd=0.01),
}
"""By name; the PID's gains are omnisafe's defaults."""


def train(task: Task, method: str) -> dict[str, Any]:
    """Train once: multipliers first, then the model. Gives the task's own numbers, and the largest multiplier."""
    lagrangian = nupi.Lagrangian(task.constraints)
    dual = METHODS[method](lagrangian.parameters(), task)
    largest = torch.zeros(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that T is too short is one of the cases
        try:
            for step in range(task.steps):
                loss, violations = task.evaluate()
                if step % task.dual_every == 0:
                    lagrangian.ascend(dual, violations if task.measure is None else task.measure())
                lagrangian(loss, violations).backward()
                task.primal.step()
                task.primal.zero_grad()
                if step % 25 == 0:
                    sizes = [m.abs().max().float() for m in lagrangian.multipliers.values()]
                    largest = torch.stack([largest, *sizes]).max()
        except nupi.NonFiniteViolationError:
            return {"violation": float("inf"), "multiplier": float("inf")}
    found = task.judge()
    if task.name.startswith("SVM"):
        from nupi.paper.svm.problem import svm

        unit = quadratics.CELLS[task.name.removeprefix("SVM, ")][2]
        found["lambda"] = float(svm().distance(unit * lagrangian.multipliers["margin"]))
    return {**found, "multiplier": float(largest)}


def tasks(seeds: int, programs: int) -> Iterator[tuple[str, Callable[[], Task]]]:
    """Every task of the comparison, by its family: what was kept back first, then the development problems."""
    for seed in range(seeds):
        for build in (unseen.autoencoder, unseen.wine):
            yield "unseen", lambda build=build, seed=seed: build(seed)
        for rule in ("recall 80, rate 40", "rate = 35", "rate <= 10"):
            for optimizer in ("adam", "adamw", "momentum"):
                for data in (networks.low_digits, networks.adult_rows):
                    yield (
                        "networks",
                        lambda d=data, r=rule, o=optimizer, s=seed: networks.network(d, r, o, 10 + s),
                    )
    for optimizer in ("adam", "momentum"):
        yield "impossible", lambda o=optimizer: networks.network(networks.adult_rows, "impossible", o, 10)
    for cell in quadratics.CELLS:
        yield "SVM", lambda c=cell: quadratics.svm_cell(c)
    for number in range(programs):
        for equality in (True, False):
            for optimizer, noise in (
                ("sgd", 0.0),
                ("momentum", 0.0),
                ("adam", 0.0),
                ("sgd", 0.03),
                ("adam", 0.03),
            ):
                yield (
                    "quadratic programs",
                    lambda n=number, q=equality, o=optimizer, z=noise: quadratics.quadratic_program(
                        2026 + n, equality=q, optimizer=o, noise=z
                    ),
                )
