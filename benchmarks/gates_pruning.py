"""What gates under a budget are worth, beside magnitude pruning and L1: same FLOPs, same number of training steps.

Every method trains for `FIRST` of the steps, is made small, and trains on as a plain small network for the rest, on one
cosine schedule of the learning rate. The gates choose while they train, under a budget on the FLOPs. Magnitude pruning
trains densely, then takes out the channels with the smallest weights. L1 trains with a penalty on the scales of the
norms (Liu and others, 2017), then takes out the channels with the smallest scales. Torch-pruning does the surgery for
these two where it can. All three may prune the same layers.

    python -m benchmarks.gates_pruning cifar            # a run that is in results.csv already is not run again
    python -m benchmarks.gates_pruning text
    python -m benchmarks.gates_pruning figure           # and the table of docs/gates.md
"""

from __future__ import annotations

import csv
import math
import sys
from time import process_time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import nupi
from benchmarks.gates_report import COLUMNS, FIRST, RESULTS, SHARES, read, report
from benchmarks.gates_tasks import TASKS, Task
from nupi import gates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

SEEDS = (0, 1, 2)


class Schedule:
    """The batches and the learning rates of one training, from its first step to its last."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.step = task, 0
        self.generator = torch.Generator().manual_seed(seed)

    def steps(self, share: float) -> Iterator[tuple[float, Any]]:
        """The factor of the learning rate and the batch, until this share of the training is over."""
        while self.step < round(share * self.task.steps):
            factor = 0.5 * (1 + math.cos(math.pi * self.step / self.task.steps))
            yield factor, self.task.batch(self.generator)
            self.step += 1


def train(
    model: nn.Module,
    schedule: Schedule,
    until: float,
    penalty: Callable[[], torch.Tensor] | None = None,
    after: Callable[[torch.Tensor], torch.Tensor] | None = None,
    parameters: Any = None,
    others: tuple[torch.optim.Optimizer, ...] = (),
) -> None:
    """Train until a share of the schedule; `penalty` is added to the loss, `after` may replace it."""
    task = schedule.task
    optimizer = task.optimizer(model.parameters() if parameters is None else parameters)
    rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    for factor, batch in schedule.steps(until):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = factor * rate
        loss = task.loss(model, batch)
        if penalty is not None:
            loss = loss + penalty()
        (loss if after is None else after(loss)).backward()
        for each in (optimizer, *others):
            each.step()
            each.zero_grad()


def with_gates(task: Task, share: float, seed: int) -> nn.Module:
    """Train gates under a budget on the FLOPs, harvest, train on."""
    torch.manual_seed(seed)
    model, schedule = task.build(), Schedule(task, seed)
    task.attach(model)
    budget = gates.budget(model, task.example, flops=share)
    lagrangian = nupi.Lagrangian({"flops": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=task.ki, kp=task.kp, init="bumpless")
    gate = torch.optim.Adam(gates.gate_parameters(model), lr=task.gate_rate, betas=(0.9, 0.95))

    def constrained(loss: torch.Tensor) -> torch.Tensor:
        violations = {"flops": budget()}
        lagrangian.ascend(dual, violations)
        value: torch.Tensor = lagrangian(loss, violations)
        return value

    weights = gates.weight_parameters(model)
    train(model, schedule, FIRST, after=constrained, parameters=weights, others=(gate,))
    print(f"{budget!r}  multiplier {lagrangian.multipliers['flops'].item():.2f}", flush=True)
    budget.fit()
    small = gates.harvest(model, task.example, repeats=1).model
    train(small, schedule, 1.0)
    return small


def flops(model: nn.Module, task: Task) -> int:
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(task.example)
    return int(counter.get_total_flops())


def milliseconds(model: nn.Module, task: Task) -> float:
    """Of one pass on the example: the shortest of 30, as time of this process on its one thread."""
    times = []
    with torch.no_grad():
        for _ in range(30):
            start = process_time()
            model.eval()(task.example)
            times.append(process_time() - start)
    return 1e3 * min(times)


def rows(task: Task, seed: int, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """All runs of a seed that are not done."""

    def row(method: str, asked: float, model: nn.Module, seconds: float) -> dict[str, Any]:
        return {
            "task": task.name,
            "method": method,
            "asked": asked,
            "seed": seed,
            "accuracy": round(task.accuracy(model), 3),
            "parameters": sum(each.numel() for each in model.parameters()),
            "flops": flops(model, task),
            "milliseconds": round(milliseconds(model, task), 3),
            "seconds": round(seconds, 1),
        }

    for share in SHARES:
        if ("gates", str(share)) not in done:
            start = process_time()
            yield row("gates", share, with_gates(task, share, seed), process_time() - start)
    for method in ("magnitude", "l1"):
        shares = [share for share in SHARES if (method, str(share)) not in done]
        wants_dense = method == "magnitude" and ("dense", "1.0") not in done
        if not shares and not wants_dense:
            continue
        torch.manual_seed(seed)
        model, schedule, start = task.build(), Schedule(task, seed), process_time()
        penalty = task.l1(model) if method == "l1" else None
        train(model, schedule, FIRST, penalty)
        first = process_time() - start
        state = {name: each.clone() for name, each in model.state_dict().items()}
        random = schedule.generator.get_state()
        for share in [*shares, *([1.0] if wants_dense else [])]:
            small, start = task.build(), process_time()
            small.load_state_dict(state)
            rest = Schedule(task, seed)
            rest.step = schedule.step
            rest.generator.set_state(random)
            if share < 1:
                small = task.prune(small, method, share * flops(small, task))
            train(small, rest, 1.0)
            name = method if share < 1 else "dense"
            yield row(name, share, small, first + process_time() - start)


def run(name: str, seeds: tuple[int, ...] = SEEDS) -> None:
    torch.set_num_threads(1)
    task = TASKS[name]()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        done = {
            (each["method"], each["asked"])
            for each in read()
            if (each["task"], each["seed"]) == (name, str(seed))
        }
        for row in rows(task, seed, done):
            path = RESULTS / "results.csv"
            new = not path.exists()
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    report() if sys.argv[1] == "figure" else run(sys.argv[1], tuple(map(int, sys.argv[2:])) or SEEDS)
