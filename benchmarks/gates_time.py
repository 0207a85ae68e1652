"""Give the trainings of `gates_pruning` equal time: measure a step of each in units of a step of the dense network."""

from __future__ import annotations

import math
import statistics
from time import process_time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from benchmarks.gates_tasks import Task

PAIRS = 25  # pairs of steps for the measurement of a cost
WARM = 5  # steps before the measurement


class Training:
    """A model, its loss and its optimizers.

    Args:
        task: the data and the optimizer.
        model: the model to train.
        objective: maps the loss to the objective; by default the loss itself.
        parameters: the parameters for the task's optimizer; by default all of the model.
        others: further optimizers, whose learning rates do not change.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        objective: Callable[[torch.Tensor], torch.Tensor] | None = None,
        parameters: Iterable[nn.Parameter] | None = None,
        others: tuple[torch.optim.Optimizer, ...] = (),
    ) -> None:
        self.task, self.model, self.objective = task, model.train(), objective
        self.optimizer = task.optimizer(model.parameters() if parameters is None else parameters)
        self.others = others
        self.rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, factor: float, batch: Any) -> None:
        """Take one step, with this factor on the learning rates."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = factor * rate
        loss = self.task.loss(self.model, batch)
        (loss if self.objective is None else self.objective(loss)).backward()
        for each in (self.optimizer, *self.others):
            each.step()
            each.zero_grad()


class Schedule:
    """The batches and the learning rates of one training, from its first step to its last.

    Attributes:
        time: the time used so far, in steps of the dense network.
        taken: the number of steps taken.
        seconds: their CPU seconds.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.time, self.taken, self.seconds = task, 0.0, 0, 0.0
        self.generator = torch.Generator().manual_seed(seed)

    def follow(self, training: Training, share: float, cost: float) -> None:
        """Train until this share of the time is used, by steps of this cost."""
        start = process_time()
        training.model.train()
        while self.time + cost / 2 < share * self.task.steps:
            factor = 0.5 * (1 + math.cos(math.pi * self.time / self.task.steps))
            training.step(factor, self.task.batch(self.generator))
            self.time += cost
            self.taken += 1
        self.seconds += process_time() - start

    def again(self) -> Schedule:
        """A copy of this schedule at its present point."""
        other = Schedule(self.task, 0)
        other.time, other.taken, other.seconds = self.time, self.taken, self.seconds
        other.generator.set_state(self.generator.get_state())
        return other


def cost_of(make: Callable[[], Training], task: Task) -> float:
    """The cost of a step in steps of the dense network. Copies of both are run in turn, and thrown away."""
    with torch.random.fork_rng():
        generator = torch.Generator().manual_seed(0)
        both = (make(), Training(task, task.build()))
        seconds: tuple[list[float], list[float]] = ([], [])
        for count in range(WARM + PAIRS):
            for training, times in zip(both, seconds, strict=True):
                batch, start = task.batch(generator), process_time()
                training.step(1e-3, batch)
                if count >= WARM:
                    times.append(process_time() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])
