"""The paper's own setting, tried for a few steps: does it run, what does a step take, and what would the whole?

At paper scale every target begins with this. Where there is an accelerator, or jobs are submitted to machines that
have one, the target then goes on; else it ends here, since a single run would take days.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from nupi import gates
from nupi.paper import jobs
from nupi.paper.sparsity.descent import Descent
from nupi.paper.sparsity.methods import Dual
from nupi.paper.sparsity.published import KP_GLOBAL
from nupi.paper.sparsity.resnet import ResNet18
from nupi.paper.sparsity.scales import experiment
from nupi.paper.sparsity.training import descend, gated

if TYPE_CHECKING:
    from torch import nn

    from nupi.paper.runner import TargetRun
    from nupi.paper.sparsity.scales import Experiment

STEPS = 3
EPSILON = 0.3
GIB = 2**30


def dry_run(run: TargetRun, count: int) -> bool:
    """Take a few steps of the paper's setting and extrapolate; whether that is all that can be done here.

    Args:
        run: of a target at any scale; nothing is done unless it is the paper's.
        count: how many whole runs the target is made of.
    """
    if run.scale != "paper":
        return False
    size = experiment(run)
    run.console.print(f"A dry run: {STEPS + 1} steps of the paper's setting.")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = gated(ResNet18(size.width, max_pool=size.max_pool), size)
        player = Dual(kp=KP_GLOBAL[EPSILON])
        activations, flops = _first_step(model, size, player)
        trial = Descent(model, size, player, EPSILON, layerwise=False)
        started = time.perf_counter()
        descend(trial, size, steps=STEPS)
        seconds = (time.perf_counter() - started) / STEPS
    # Weights, their gradients and momenta; the gates' Adam has one more, on 1,920 numbers.
    states = 3 * sum(each.numel() * each.element_size() for each in model.parameters())
    hours = size.steps * seconds / 3600
    place = next(model.parameters()).device
    weights = sum(each.numel() for each in gates.weight_parameters(model))
    switched = sum(layer.gated_parameters() for layer in gates.gated_layers(model).values())
    rows = {
        "parameters": f"{weights:,}, {switched:,} of them gated",
        "images a step": f"{size.batch} of {size.side} x {size.side}",
        "memory of a step": f"{(activations + states) / GIB:.2f} GiB: {activations / GIB:.2f} kept for the backward "
        f"pass, {states / GIB:.2f} of weights, gradients and momenta",
        "arithmetic of a step": f"{flops / 1e9:,.0f} GFLOP",
        f"time of a step, on {place}": f"{seconds:.2f} s ({flops / seconds / 1e9:,.0f} GFLOP/s)",
        "a run": f"{size.steps:,} steps, {size.steps * flops / 1e15:,.1f} PFLOP: {hours:,.0f} hours here",
        "this target": f"{count} runs: {count * hours / 24:,.0f} days here; "
        f"{count * size.steps * flops / 1e13 / 3600:,.0f} hours at 10 TFLOP/s",
    }
    run.table(
        "A dry run of the paper's setting",
        pd.DataFrame({"what": list(rows), "measured": list(rows.values())}),
    )
    if place.type != "cpu" or jobs.are_submitted():
        return False
    run.console.print(
        "There is no accelerator here, so this is all; --scale desk is for a machine like this one."
    )
    run.dry = True
    return True


def _first_step(model: nn.Module, size: Experiment, player: Dual) -> tuple[int, int]:
    """Bytes that a step keeps for its backward pass, without the parameters, and its floating-point operations."""
    parameters = {each.data_ptr() for each in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter:
        descend(Descent(model, size, player, EPSILON, layerwise=False), size, steps=1)
    return sum(kept.values()), counter.get_total_flops()
