"""What a model costs: parameters, floating-point operations, and time."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

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
        flops: of convolutions and matrix products, a multiplication and an addition being two.
        milliseconds: the median time on the CPU.
    """

    parameters: int
    nonzero: int
    flops: int
    milliseconds: float


def measure(models: Sequence[nn.Module], call: Call, repeats: int) -> list[Footprint]:
    """The footprints of models in evaluation mode on the same inputs, timed in turn so that noise is shared."""
    from torch.utils.flop_counter import FlopCounterMode

    here = [_on_cpu(model) for model in models]
    call = call.on_cpu()
    flops = []
    times: list[list[float]] = [[] for _ in here]
    with torch.no_grad():
        for model in here:
            with FlopCounterMode(display=False) as counter:
                call(model)
            flops.append(counter.get_total_flops())
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


def _on_cpu(model: nn.Module) -> nn.Module:
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        return model
    return copy.deepcopy(model).cpu()
