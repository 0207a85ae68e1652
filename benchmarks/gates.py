"""The cost of gates in a training step, and the speedup by a harvest: CIFAR ResNet-18 at a quarter of its width.

Timed are: a step of the dense network; the same with gates on the paper's eight layers; the same with a Lagrangian on
their density too. Then a forward pass of the full network, and one after seven of ten gated channels are removed.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

import nupi
from benchmarks.timing import Row, at_most, best_times, listed
from nupi import gates
from nupi.paper.sparsity.resnet import ResNet18, sparse_resnet18

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

WIDTH, CLOSED = 16, 0.7


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A step on the loss alone."""
    primal = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def take() -> None:
        cross_entropy(model(x), y).backward()
        primal.step()
        primal.zero_grad()

    return take


def constrained_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A step with a multiplier on the density."""
    primal = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    lagrangian = nupi.Lagrangian({"density": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=1.0)

    def take() -> None:
        loss, violations = cross_entropy(model(x), y), {"density": gates.density(model) - 0.3}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()

    return take


def run() -> list[Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(64, 3, 16, 16), torch.arange(64) % 10
    steps = {
        "dense": step(ResNet18(WIDTH), x, y),
        "gated": step(sparse_resnet18(WIDTH), x, y),
        "with the density constrained": constrained_step(sparse_resnet18(WIDTH), x, y),
    }
    # Steps are long enough to be interrupted, so the CPU time of this process is measured, on one thread.
    times = best_times(steps, rounds=20, calls=1, clock=process_time)
    dense, gated, constrained = times.values()
    model = sparse_resnet18(WIDTH)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi[: int(CLOSED * len(phi))] = -50.0
    small = gates.harvest(model, x)
    before, after = small.before, small.after
    return [
        at_most("a step with gates / a dense step", gated / dense, 1.05, listed(times)),
        at_most("a step under the constraint / a step with gates", constrained / gated, 1.05),
        at_most(
            "a pass after the harvest / before it",
            after.milliseconds / before.milliseconds,
            0.7,
            f"{before.milliseconds:.1f} ms, {after.milliseconds:.1f} ms; "
            f"parameters {after.parameters / before.parameters:.2f}, FLOPs {after.flops / before.flops:.2f}",
        ),
    ]
