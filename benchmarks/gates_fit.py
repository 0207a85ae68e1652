"""What `budget.fit()` costs in accuracy, by the order in which gates are closed or opened.

The networks of `gates_pruning` train under a budget on their FLOPs and stop at a share of their steps; some end on the
budget, some far above it. Then the same network is fitted in several orders, and tested before anything trains on.

    python -m benchmarks.gates_fit          # writes results/pruning/fit.csv
"""

from __future__ import annotations

import copy
import csv
from typing import TYPE_CHECKING

import torch

from benchmarks.gates_pruning import SEEDS, gated
from benchmarks.gates_report import RESULTS
from benchmarks.gates_tasks import TASKS
from benchmarks.gates_time import Schedule
from nupi.gates.budgets.fitting import filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi import gates

# A task, the share of its steps after which training stops, and the share of the FLOPs that is asked for.
CASES = (("text", 0.6, 0.25), ("text", 0.3, 0.25), ("cifar", 0.6, 0.25), ("cifar", 0.35, 0.25))
ORDERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "distance": lambda distance, _: distance,
    "distance per size": lambda distance, size: distance / size,
    "distance times size": lambda distance, size: distance * size,
}


def sizes(budget: gates.Budget) -> torch.Tensor:
    """By how much the share of the FLOPs changes with each gate."""
    is_open = torch.cat([gate.is_open() for gate in budget._gates]).float().requires_grad_()
    (slopes,) = torch.autograd.grad(budget._share(is_open), is_open)
    return slopes.clamp(min=1e-9)


@torch.no_grad()
def fit(budget: gates.Budget, scores: torch.Tensor) -> int:
    """As `budget.fit()`, with another order of the gates; how many were moved."""
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


def run() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, stop, asked in CASES:
        task = TASKS[name]()
        for seed in SEEDS:
            torch.manual_seed(seed)
            training, budget = gated(task, asked)
            Schedule(task, seed).follow(training, stop, 1.0)
            row = {"task": name, "stop": stop, "asked": asked, "seed": seed}
            row |= {
                "ended": round(budget.realised().item(), 3),
                "trained": round(task.accuracy(training.model), 2),
            }
            state = copy.deepcopy(training.model.state_dict())
            for order, score in ORDERS.items():
                training.model.load_state_dict(state)
                distance = torch.cat([gate.margin() for gate in budget._gates])
                moved = fit(budget, score(distance, sizes(budget)))
                accuracy = round(task.accuracy(training.model), 2)
                rows.append({**row, "order": order, "moved": moved, "accuracy": accuracy})
                print(rows[-1], flush=True)
    with (RESULTS / "fit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    run()
