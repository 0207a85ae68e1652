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
from nupi.paper.runner import Claim, Run
from nupi.paper.sparsity.descent import Descent
from nupi.paper.sparsity.methods import Dual
from nupi.paper.sparsity.published import KP_GLOBAL
from nupi.paper.sparsity.resnet import GATED, ResNet18
from nupi.paper.sparsity.setting import SETTINGS
from nupi.paper.sparsity.training import descend, on_device

if TYPE_CHECKING:
    from torch import nn

STEPS = 3
EPSILON = 0.3
PARAMETERS, GATED_PARAMETERS = 11_173_962, 4_718_592  # the paper says about 11.2 million
GIB = 2**30


def dry_run(run: Run, count: int) -> list[Claim]:
    """Take a few steps of the paper's setting and extrapolate; the claims to end with, or none to go on.

    Args:
        run: of a target at any scale; nothing is done unless it is the paper's.
        count: how many whole runs the target is made of.
    """
    if run.scale != "paper":
        return []
    size = SETTINGS["paper"]
    run.console.print(f"A dry run: {STEPS + 1} steps of the paper's setting.")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ResNet18(size.width, max_pool=size.max_pool)
        gates.attach(model, GATED, place=size.place, droprate_init=size.droprate_init, clamp=size.clamp)
        model = on_device(model)
        player = Dual(kp=KP_GLOBAL[EPSILON])
        activations, flops = _first_step(model, player)
        trial = Descent(model, size, player, EPSILON, layerwise=False)
        started = time.perf_counter()
        descend(trial, size, steps=STEPS)
        seconds = (time.perf_counter() - started) / STEPS
    # Weights, their gradients and momenta; the gates' Adam has one more, on 1,920 numbers.
    states = 3 * sum(each.numel() * each.element_size() for each in model.parameters())
    hours = size.steps * seconds / 3600
    place = next(model.parameters()).device
    rows = {
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
        return []
    run.console.print(
        "There is no accelerator here, so this is all; --scale desk is for a machine like this one."
    )
    weights = sum(each.numel() for each in gates.weight_parameters(model))
    gated = sum(layer.gated_parameters() for layer in gates.gated_layers(model).values())
    finite = all(bool(curve.isfinite().all()) for curve in trial.curves().values())
    return [
        Claim(
            "the network has the paper's size",
            f"about {PARAMETERS / 1e6:.1f} million parameters; by its description {GATED_PARAMETERS:,} of them gated",
            f"{weights:,} parameters, {gated:,} of them gated",
            (weights, gated) == (PARAMETERS, GATED_PARAMETERS),
        ),
        Claim(
            "its training steps run",
            f"{size.steps:,} steps",
            f"{STEPS} steps of {seconds:.1f} s with finite violations and multipliers",
            finite,
        ),
    ]


def _first_step(model: nn.Module, player: Dual) -> tuple[int, int]:
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
        descend(
            Descent(model, SETTINGS["paper"], player, EPSILON, layerwise=False), SETTINGS["paper"], steps=1
        )
    return sum(kept.values()), counter.get_total_flops()
