"""Compare gates under a budget with magnitude pruning and L1, at the same FLOPs and the same training time.

Every method trains for the share `FIRST` of its time. Then its network is made small, and trains as a plain network for
the rest, on one cosine schedule of the learning rate. The time is measured in steps of the dense network. A step with
gates takes longer, a step of a small network less long, so every method takes as many steps as fit. The cost of a step
is measured during the run, in turn with the dense step. The surgery is not part of the time; it has its own column.

Gates choose channels during training, under a budget on the FLOPs. Magnitude pruning trains the dense network, then
removes the channels with the smallest weights. L1 trains with a penalty on the scales of the norms (Liu and others,
2017), then removes the channels with the smallest scales. Torch-pruning does the surgery for these two if it can. All
three may prune the same layers.

    python -m benchmarks.gates_pruning cifar            # a run that is in results.csv already is not run again
    python -m benchmarks.gates_pruning text
    python -m benchmarks.gates_pruning figure           # and the table of docs/gates.md
"""

from __future__ import annotations

import copy
import csv
import sys
from time import process_time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import nupi
from benchmarks.gates_report import COLUMNS, FIRST, RESULTS, SHARES, read, report
from benchmarks.gates_tasks import TASKS, Task
from benchmarks.gates_time import Schedule, Training, cost_of
from nupi import gates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

SEEDS = (0, 1, 2)


def gated(task: Task, share: float) -> tuple[Training, gates.Budget]:
    """A network with gates under a budget on its FLOPs, and its optimizers."""
    model = task.build()
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

    return Training(task, model, constrained, gates.weight_parameters(model), (gate,)), budget


def penalised(task: Task) -> Training:
    """A plain network with the L1 penalty in its loss."""
    model = task.build()
    penalty = task.l1(model)
    return Training(task, model, lambda loss: loss + penalty())


def finish(small: nn.Module, schedule: Schedule) -> None:
    """Train a small network for the rest of the time."""
    task = schedule.task
    cost = cost_of(lambda: Training(task, copy.deepcopy(small)), task)
    schedule.follow(Training(task, small), 1.0, cost)


def with_gates(schedule: Schedule, share: float) -> tuple[nn.Module, float, float]:
    """Train gates under a budget on the FLOPs, harvest, and train further.

    Returns:
        The network, the seconds of the surgery, and the share of the FLOPs at the end of training, before the fit.
    """
    task = schedule.task
    training, budget = gated(task, share)
    schedule.follow(training, FIRST, cost_of(lambda: gated(task, share)[0], task))
    ended, start = budget.realised().item(), process_time()
    budget.fit()
    small = gates.harvest(training.model, task.example, repeats=1).model
    surgery = process_time() - start
    finish(small, schedule)
    return small, surgery, ended


def without(
    schedule: Schedule, method: str, shares: list[float]
) -> Iterator[tuple[float, nn.Module, float, Schedule]]:
    """Train a plain network, then prune it to each share and train further; a share of 1 is not pruned."""
    task = schedule.task
    training = penalised(task) if method == "l1" else Training(task, task.build())
    schedule.follow(training, FIRST, cost_of(lambda: penalised(task), task) if method == "l1" else 1.0)
    for share in shares:
        small, rest = copy.deepcopy(training.model), schedule.again()
        start = process_time()
        if share < 1:
            small = task.prune(small, method, share * flops(small, task))
        surgery = process_time() - start
        if share < 1:
            finish(small, rest)
        else:
            rest.follow(Training(task, small), 1.0, 1.0)
        yield share, small, surgery, rest


def flops(model: nn.Module, task: Task) -> int:
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(task.example)
    return int(counter.get_total_flops())


def milliseconds(model: nn.Module, task: Task) -> float:
    """The CPU seconds of a forward pass on the example, on one thread: the shortest of 30."""
    times = []
    with torch.no_grad():
        for _ in range(30):
            start = process_time()
            model.eval()(task.example)
            times.append(process_time() - start)
    return 1e3 * min(times)


def rows(task: Task, seed: int, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """All runs of a seed that have no result yet."""

    def row(
        method: str,
        asked: float,
        model: nn.Module,
        surgery: float,
        spent: Schedule,
        ended: float | None = None,
    ) -> dict[str, Any]:
        return {
            "task": task.name,
            "method": method,
            "asked": asked,
            "seed": seed,
            "accuracy": round(task.accuracy(model), 3),
            "parameters": sum(each.numel() for each in model.parameters()),
            "flops": flops(model, task),
            "milliseconds": round(milliseconds(model, task), 3),
            "steps": spent.taken,
            "dense_steps": round(spent.time, 1),
            "seconds": round(spent.seconds, 1),
            "surgery": round(surgery, 1),
            "ended": "" if ended is None else round(ended, 3),
        }

    for share in SHARES:
        if ("gates", str(share)) not in done:
            torch.manual_seed(seed)
            schedule = Schedule(task, seed)
            small, surgery, ended = with_gates(schedule, share)
            yield row("gates", share, small, surgery, schedule, ended)
    for method in ("magnitude", "l1"):
        shares = [share for share in SHARES if (method, str(share)) not in done]
        if method == "magnitude" and ("dense", "1.0") not in done:
            shares.append(1.0)
        if shares:
            torch.manual_seed(seed)
            for share, small, surgery, spent in without(Schedule(task, seed), method, shares):
                yield row(method if share < 1 else "dense", share, small, surgery, spent)


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
