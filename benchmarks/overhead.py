"""The cost of constraints in a training step of a real model, compared with the same step with a fixed penalty.

Both compute the same two violations: a bound on the mean square of the outputs, and a mean prediction for each of ten
classes. The fixed penalty has constant weights; nupi moves the weights.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nupi
from benchmarks.timing import Row, at_most, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

Model = tuple[nn.Module, torch.Tensor]


def cnn() -> Model:
    """Three convolutions on 128 images of 32 x 32."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return model, torch.randn(128, 3, 32, 32)


class Block(nn.Module):
    """A transformer block of width 256 with eight heads, and a head for ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The classes of each sequence."""
        out: torch.Tensor = self.head(self.block(x).mean(1))
        return out


def transformer() -> Model:
    torch.manual_seed(0)
    return Block(), torch.randn(8, 64, 256)


def evaluate(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logits = model(x)
    rates = logits.softmax(1).mean(0)
    return cross_entropy(logits, y), {"rates": rates - 0.1, "size": logits.square().mean() - 0.5}


def steps(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], None]]:
    """The same step of the same model twice: with a fixed penalty, and with multipliers that move."""
    y = torch.arange(len(x)) % 10
    primal = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    weights, weight = torch.full((10,), 0.1), 0.1
    lagrangian = nupi.Lagrangian({"rates": nupi.Equality(10), "size": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=0.1, nu=0.9)

    def penalty() -> None:
        loss, violations = evaluate(model, x, y)
        primal.zero_grad()
        (loss + weights @ violations["rates"] + weight * violations["size"]).backward()
        primal.step()

    def constrained() -> None:
        loss, violations = evaluate(model, x, y)
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(loss, violations).backward()
        primal.step()

    return {"penalty": penalty, "nupi": constrained}


def run() -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for name, make in (("small CNN", cnn), ("transformer block", transformer)):
        # Steps are long enough to be interrupted, so the CPU time of this process is measured, on one thread.
        times = best_times(steps(*make()), rounds=100, calls=1, clock=process_time)
        rows.append(at_most(f"{name}: nupi / penalty", times["nupi"] / times["penalty"], 1.03, listed(times)))
    return rows
