"""The time of the network as a function of the gates: a table of measured times for every layer, interpolated.

Each layer is timed at a few input and output widths, on the device and the input of the example. The time of a
convolution is a staircase: a processor computes 16 channels at once, so 33 cost as much as 48. So a layer is timed at
both sides of a step. The rest of the time (activations, sums, pooling, attention) is divided among the layers in
proportion to their outputs, and falls with their widths.
"""

from __future__ import annotations

import copy
import functools
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nupi.distributed import world_size
from nupi.gates.budgets.counting import Widths
from nupi.gates.budgets.parts import call_shapes
from nupi.gates.graph import unchanged
from nupi.gates.harvesting.narrow import narrow_layer
from nupi.gates.harvesting.rules import LAYER_NORMS
from nupi.gates.layers import is_conv1d

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.gates.budgets.parts import Network, Part
    from nupi.gates.call import Call

STEP = 16  # channels that are computed at once
POINTS = 8  # widths at which a layer is measured: both sides of three steps, and the ends
ROUNDS = 3  # measurements of each entry; the shortest counts
SECONDS = 0.003  # duration of the measurement of one entry in one round


def points(count: int, size: int = 1) -> list[int]:
    """The widths at which a layer of `count` channels is measured, in rising order. Above `count` is its own time.

    >>> points(64)
    [1, 16, 17, 32, 33, 48, 49, 64]
    >>> points(3)
    [1, 2, 3, 4, 5, 6, 7, 8]

    Args:
        count: the channels of the whole layer.
        size: how many channels stay or go together, as in a group.
    """
    step = next(each for each in (STEP, 8, 1) if each == 1 or count >= 4 * each)
    steps = [max(1, round(count * quarter / 4 / step)) * step for quarter in (1, 2, 3)]
    wanted = [1, *(each + side for each in steps for side in (0, 1)), count]
    found = sorted({min(size * -(-each // size), count) for each in wanted})
    return found + [count + more for more in range(1, POINTS + 1 - len(found))]


class Latency:
    """The share of the time that is left: 1 for the network with all gates open.

    Args:
        network: the parts and their conditions.
        tables: by part, the time for each input and output width: (parts, POINTS, POINTS).
        places: the input and output widths of the tables: (2, parts, POINTS).
        total: the time of the whole network.
        outputs: how many numbers each part computes.
    """

    def __init__(
        self,
        network: Network,
        tables: torch.Tensor,
        places: torch.Tensor,
        total: float,
        outputs: torch.Tensor,
    ) -> None:
        self._widths = Widths(network)
        tables = _never_slower(tables)
        rest = max(total - float(tables[:, -1, -1].sum()), 0.0) * outputs / outputs.sum()
        full = torch.tensor([len(part.outgoing) for part in network.parts])
        tables = tables + (rest[:, None] * (places[1] / full[:, None]).clamp(max=1))[:, None, :]
        self._tables, self._places = tables / tables[:, -1, -1].sum(), places

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """The share left for these gates, or about the expected share if they are probabilities."""
        tables, places = self._tables.to(gates), self._places.to(gates)
        parts = torch.arange(len(tables), device=gates.device)
        (i, u), (j, v) = (_cell(*each) for each in zip(self._widths(gates), places, strict=True))
        near = tables[parts, i, j] * (1 - v) + tables[parts, i, j + 1] * v
        far = tables[parts, i + 1, j] * (1 - v) + tables[parts, i + 1, j + 1] * v
        return (near * (1 - u) + far * u).sum()


def _never_slower(tables: torch.Tensor) -> torch.Tensor:
    """The tables, corrected so that a narrower layer never takes longer than a wider one.

    For small layers, times differ more between calls than between widths. Uncorrected, a network with all gates closed
    could seem slower than the whole one, and the gradient would open gates to save time.
    """
    for dim in (1, 2):
        tables = tables.flip(dim).cummin(dim).values.flip(dim)
    return tables


def _cell(width: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By width, the index of the next smaller place, and the position between that and the next larger one (0 to 1)."""
    cell = torch.searchsorted(places, width.detach()[:, None].contiguous(), right=True).squeeze(1) - 1
    cell = cell.clamp(0, POINTS - 2)
    low, high = (places.gather(1, each[:, None]).squeeze(1) for each in (cell, cell + 1))
    return cell, (width - low) / (high - low)


def timed(network: Network, plain: nn.Module, call: Call) -> Latency:
    """The latency of a plain model as a function of the gates, measured on these inputs.

    With several processes all ranks must call this. They use the times of rank 0, because with different times they
    would get different multipliers and networks.
    """
    shapes = call_shapes(plain, call)
    measured: list[Any] = [None]
    if world_size(None) == 1 or torch.distributed.get_rank() == 0:
        measured = [_measured(network, plain, call, shapes)]
    if world_size(None) > 1:
        torch.distributed.broadcast_object_list(measured, src=0)
    tables, total = measured[0]
    outputs = torch.tensor(
        [
            shapes[part.name][1].numel() if any(part.parameters) and part.name in shapes else 0
            for part in network.parts
        ],
        dtype=torch.float64,
    )
    return Latency(network, tables, _places(network, plain), total, outputs)


def _places(network: Network, plain: nn.Module) -> torch.Tensor:
    """The input and output widths at which the parts are measured."""
    found = []
    for part in network.parts:
        size = _together(plain.get_submodule(part.name), len(part.outgoing))
        found.append([points(len(part.incoming)), points(len(part.outgoing), size)])
    return torch.tensor(found, dtype=torch.float64).transpose(0, 1).contiguous()


def _measured(
    network: Network, plain: nn.Module, call: Call, shapes: dict[str, tuple[torch.Size, torch.Size]]
) -> tuple[torch.Tensor, float]:
    """The tables of all parts, and the time of the whole model.

    A disturbance of the machine lasts longer than one measurement. So all are measured in turn, and then all again.
    """
    tables, totals = zip(*(_once(network, plain, call, shapes) for _ in range(ROUNDS)), strict=True)
    return torch.stack(tables).amin(0), min(totals)


def _once(
    network: Network, plain: nn.Module, call: Call, shapes: dict[str, tuple[torch.Size, torch.Size]]
) -> tuple[torch.Tensor, float]:
    nothing = torch.zeros(POINTS, POINTS, dtype=torch.float64)
    # Layers of the same form take the same time, so only one of them is measured.
    known: dict[object, torch.Tensor] = {}
    tables = []
    for part in network.parts:
        layer = plain.get_submodule(part.name)
        form = (repr(layer), part.parameters, len(part.outgoing), shapes.get(part.name))
        if form not in known:
            is_timed = any(part.parameters) and part.name in shapes
            known[form] = _table(layer, part, shapes[part.name][0]) if is_timed else nothing
        tables.append(known[form])
    with unchanged(plain):
        total = _seconds(functools.partial(plain, **call.named), call.positional)
    return torch.stack(tables), total


def _table(layer: nn.Module, part: Part, given: torch.Size) -> torch.Tensor:
    """Seconds by input width (rows) and output width (columns)."""
    pairwise, count = part.parameters[0] > 0, len(part.outgoing)
    outs = [out for out in points(count, _together(layer, count)) if out <= count]
    ins = [each for each in points(len(part.incoming)) if each <= len(part.incoming)] if pairwise else [None]
    rows = [[_narrow_seconds(layer, part, given, each, out) for out in outs] for each in ins]
    table = torch.tensor(rows, dtype=torch.float64)
    table = torch.cat([table, table[:, -1:].expand(-1, POINTS - len(outs))], 1)  # beyond the whole width
    return torch.cat([table, table[-1:].expand(POINTS - len(ins), -1)])


def _narrow_seconds(
    layer: nn.Module, part: Part, given: torch.Size, width_in: int | None, width_out: int
) -> float:
    """The seconds of a layer with these numbers of input and output channels; None: as many inputs as outputs."""
    is_last = isinstance(layer, (nn.Linear, *LAYER_NORMS)) or is_conv1d(layer)
    dim = len(given) - 1 if is_last else 1
    # A grouped convolution may have more outputs than inputs or fewer; both have the same number of groups.
    wanted = given[dim] * width_out // len(part.outgoing) if width_in is None else width_in
    small = copy.deepcopy(layer)
    outgoing = torch.arange(len(part.outgoing)) < width_out
    narrow_layer(small, outgoing, None if width_in is None else torch.arange(given[dim]) < wanted)
    sizes = [*given[:dim], wanted, *given[dim + 1 :]]
    any_parameter = next(iter(small.parameters()))
    return _seconds(small, (torch.randn(sizes, device=any_parameter.device, dtype=any_parameter.dtype),))


def _together(layer: nn.Module, count: int) -> int:
    """How many of a layer's channels stay or go together: those of a group, or 1."""
    groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else int(getattr(layer, "groups", 1))
    return count // groups if groups > 1 else 1


@torch.no_grad()
def _seconds(module: Callable[..., Any], inputs: tuple[Any, ...]) -> float:
    from torch.utils.benchmark import Timer

    threads = torch.get_num_threads()
    on_host = not any(isinstance(each, torch.Tensor) and each.device.type != "cpu" for each in inputs)
    # Where possible, measure the time of this process only, not of other programs on the machine.
    clock: dict[str, Any] = {"timer": time.process_time} if on_host and threads == 1 else {}
    timer = Timer(
        "module(*inputs)", globals={"module": module, "inputs": inputs}, num_threads=threads, **clock
    )
    count = max(1, int(SECONDS / max(timer.timeit(1).mean, 1e-9)))
    return float(timer.timeit(count).mean)
