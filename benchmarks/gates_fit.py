"""The accuracy that `budget.fit()` costs, by the order in which gates are closed or opened.

The networks of `gates_pruning` train under a budget on their FLOPs and stop at a share of their steps; some end on the
budget, some far above it. Then the same network is fitted in several orders, harvested and tested without further
training: as it is, and after its batch norms have recomputed their statistics on some batches.

    python -m benchmarks.gates_fit          # writes results/pruning/fit.csv
"""

from __future__ import annotations

import copy
import csv
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from benchmarks.gates_pruning import SEEDS, gated
from benchmarks.gates_report import RESULTS
from benchmarks.gates_tasks import TASKS
from benchmarks.gates_time import Schedule
from nupi import gates
from nupi.gates.budgets.fitting import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.gates_tasks import Task

BATCHES = 50  # batches for the statistics of batch norms

# A task, the share of its steps after which training stops, and the limit on the FLOPs.
CASES = (("text", 0.6, 0.25), ("text", 0.3, 0.25), ("cifar", 0.6, 0.25), ("cifar", 0.35, 0.25))
ORDERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "distance": lambda distance, _: distance,
    "distance per size": lambda distance, size: distance / size,
    "distance times size": lambda distance, size: distance * size,
}


def sizes(budget: gates.Budget) -> torch.Tensor:
    """The change of the share of the FLOPs by each gate."""
    is_open = torch.cat([gate.is_open() for gate in budget._gates]).float().requires_grad_()
    (slopes,) = torch.autograd.grad(budget._share(is_open), is_open)
    return slopes.clamp(min=1e-9)


@torch.no_grad()
def fit(budget: gates.Budget, scores: torch.Tensor) -> int:
    """As `budget.fit()`, with another order of the gates; returns how many were switched."""
    order = scores.argsort(descending=True, stable=True)
    before = torch.cat([gate.is_open() for gate in budget._gates])
    stays = budget._mask(
        filled(order, lambda chosen: budget._share(budget._mask(chosen).double()), budget.limit)
    )
    for gate, part in zip(
        budget._gates, stays.split([len(gate.log_alpha) for gate in budget._gates]), strict=True
    ):
        gate.close_(~part)
        gate.open_(part)
    return int((stays != before).sum())


def tested(task: Task, model: nn.Module) -> tuple[float, float]:
    """The accuracy of the harvested network: as it is, and after its batch norms have seen data."""
    small = gates.harvest(model, task.example, repeats=1).model
    as_it_is, generator = task.accuracy(small), torch.Generator().manual_seed(0)
    if any(isinstance(each, nn.BatchNorm2d) for each in small.modules()):
        update_bn([task.batch(generator) for _ in range(BATCHES)], small)
    return round(as_it_is, 2), round(task.accuracy(small), 2)


def rows(name: str, stop: float, asked: float, seed: int) -> Iterator[dict[str, Any]]:
    """One training, followed by fits in all orders."""
    task = TASKS[name]()
    torch.manual_seed(seed)
    training, budget = gated(task, asked)
    Schedule(task, seed).follow(training, stop, 1.0)
    state = copy.deepcopy(training.model.state_dict())
    size, distance = sizes(budget), torch.cat([gate.margin() for gate in budget._gates])
    for order, score in {"no fit": None, **ORDERS}.items():
        training.model.load_state_dict(state)
        moved = 0 if score is None else fit(budget, score(distance, size))
        accuracy, with_norms = tested(task, training.model)
        yield {
            "task": name,
            "stop": stop,
            "asked": asked,
            "seed": seed,
            "order": order,
            "moved": moved,
            "left": round(budget.realised().item(), 4),
            "accuracy": accuracy,
            "with_norms": with_norms,
        }


def read() -> list[dict[str, str]]:
    with (RESULTS / "fit.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(found: list[dict[str, str]]) -> list[str]:
    """The table of docs/gates.md, a line for each case and order: means over the seeds."""
    lines = []
    for name, stop, asked in CASES:
        case = [
            row for row in found if (row["task"], row["stop"], row["asked"]) == (name, str(stop), str(asked))
        ]
        for order in ("no fit", *ORDERS):
            runs = [row for row in case if row["order"] == order]
            left, accuracy, with_norms = (
                sum(float(row[column]) for row in runs) / len(runs)
                for column in ("left", "accuracy", "with_norms")
            )
            norms = f"{with_norms:.1f}" if name == "cifar" else "no such norms"
            title = f"{TASKS[name].title}, {stop * TASKS[name].steps:.0f} steps"
            lines.append(f"| {title} | {order} | {100 * left:.1f} | {accuracy:.1f} | {norms} |")
    return lines


def run() -> None:
    torch.set_num_threads(1)
    made = []
    for case in CASES:
        for seed in SEEDS:
            for row in rows(*case, seed):
                made.append(row)
                print(row, flush=True)
    with (RESULTS / "fit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    print("\n".join(table(read())))


if __name__ == "__main__":
    run()
