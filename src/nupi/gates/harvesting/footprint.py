"""What a model costs: parameters, floating-point operations, and time."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nupi.gates.graph import unchanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from nupi.gates.call import Call

WARM_UP = 3


@dataclass(frozen=True)
class Footprint:
    """The cost of one forward pass.

    Args:
        parameters: how many there are.
        nonzero: how many of them are not zero.
        flops: operations of convolutions and matrix products; a multiplication and an addition are two.
        milliseconds: the median time on the CPU.
    """

    parameters: int
    nonzero: int
    flops: int
    milliseconds: float


def measure(models: Sequence[nn.Module], call: Call, repeats: int) -> list[Footprint]:
    """The footprints of models in evaluation mode. They are timed in turn, so that all get the same noise."""
    here = [_on_cpu(model) for model in models]
    call = call.on_cpu()
    flops = [flops_of(model, call)["Global"] for model in here]
    times: list[list[float]] = [[] for _ in here]
    with torch.no_grad():
        for turn in range(WARM_UP + repeats):
            for model, seconds in zip(here, times, strict=True):
                start = time.perf_counter()
                call(model)
                if turn >= WARM_UP:
                    seconds.append(time.perf_counter() - start)
    return [
        Footprint(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            nonzero=sum(int(parameter.count_nonzero()) for parameter in model.parameters()),
            flops=count,
            milliseconds=1e3 * statistics.median(seconds),
        )
        for model, count, seconds in zip(here, flops, times, strict=True)
    ]


def flops_of(model: nn.Module, call: Call) -> dict[str, int]:
    """The FLOPs of a call: "Global" for the whole model, "ModelClass.name" for each module."""
    from torch.utils.flop_counter import FlopCounterMode

    trained = [each for each in model.parameters() if each.requires_grad]
    fast = torch.backends.mha.get_fastpath_enabled()
    # torch counts no FLOPs of its fused attention.
    torch.backends.mha.set_fastpath_enabled(False)
    # With gradients, the counter fails if a module gets a view of a parameter.
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with unchanged(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(model)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for parameter in trained:
            parameter.requires_grad_(True)
    return {"Global": 0} | {name: sum(each.values()) for name, each in counter.get_flop_counts().items()}


def _on_cpu(model: nn.Module) -> nn.Module:
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).cpu()
