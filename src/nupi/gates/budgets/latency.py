"""How long the network takes for given gates: a table of measured times for every layer, interpolated.

Each layer is timed at a few widths in and out, on the device and for the input of the example. What the layers do not
explain (activations, sums, pooling, attention) is shared out among them by the numbers they give, and falls with their
widths.
"""

from __future__ import annotations

import copy
import functools
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

GRID = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the widths, as shares; 0 stands for one channel
SECONDS = 0.01  # that each entry of a table is measured for


class Latency:
    """The share of the time that is left: 1 for the network with all gates open.

    Args:
        network: the parts and their conditions.
        tables: of each part, the time by width in and width out (parts, len(GRID), len(GRID)).
        total: the time of the whole network.
        outputs: how many numbers each part gives.
        gates: how many there are.
    """

    def __init__(
        self, network: Network, tables: torch.Tensor, total: float, outputs: torch.Tensor, gates: int
    ) -> None:
        self._widths = Widths(network)
        self._full = torch.stack(self._widths(torch.ones(gates, dtype=torch.float64)))
        tables = _never_slower(tables)
        rest = max(total - float(tables[:, -1, -1].sum()), 0.0) * outputs / outputs.sum()
        grid = torch.tensor(GRID, dtype=torch.float64)
        tables = tables + rest[:, None, None] * grid
        self._tables = tables / tables[:, -1, -1].sum()

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """The share that is left for these gates, or for these probabilities about."""
        incoming, outgoing = torch.stack(self._widths(gates)) / self._full.to(gates)
        tables = self._tables.to(gates)
        parts = torch.arange(len(tables), device=gates.device)
        (i, u), (j, v) = _cell(incoming), _cell(outgoing)
        near = tables[parts, i, j] * (1 - v) + tables[parts, i, j + 1] * v
        far = tables[parts, i + 1, j] * (1 - v) + tables[parts, i + 1, j + 1] * v
        return (near * (1 - u) + far * u).sum()


def _never_slower(tables: torch.Tensor) -> torch.Tensor:
    """The tables with noise taken out of their order: a narrower layer takes at most the time of a wider one.

    Times of small layers differ by more from call to call than from width to width. Left as measured, a network with
    all gates closed may seem slower than the whole, and the gradient then opens gates to save time.
    """
    for dim in (1, 2):
        tables = tables.flip(dim).cummin(dim).values.flip(dim)
    return tables


def _cell(share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which cell of the grid a share is in, and where in the cell."""
    place = share * (len(GRID) - 1)
    cell = place.detach().long().clamp(max=len(GRID) - 2)
    return cell, place - cell


def timed(network: Network, plain: nn.Module, call: Call, gates: int) -> Latency:
    """The latency of a plain model as a function of the gates, measured on these inputs.

    In a run of many processes the times are those of rank 0: else each would have its own multiplier, and fit its own
    network. All ranks must take part.
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
    return Latency(network, tables, total, outputs, gates)


def _measured(
    network: Network, plain: nn.Module, call: Call, shapes: dict[str, tuple[torch.Size, torch.Size]]
) -> tuple[torch.Tensor, float]:
    """The tables of all parts, and the time of the whole model."""
    nothing = torch.zeros(len(GRID), len(GRID), dtype=torch.float64)
    known: dict[
        object, torch.Tensor
    ] = {}  # layers of the same form take the same time: one of them is measured
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
    """Seconds by width in (rows) and width out (columns)."""
    pairwise = part.parameters[0] > 0
    rows = [
        [_narrow_seconds(layer, part, given, i if pairwise else o, o, pairwise=pairwise) for o in GRID]
        for i in (GRID if pairwise else (1.0,))
    ]
    return torch.tensor(rows, dtype=torch.float64).expand(len(GRID), len(GRID))


def _narrow_seconds(
    layer: nn.Module, part: Part, given: torch.Size, share_in: float, share_out: float, *, pairwise: bool
) -> float:
    is_last = isinstance(layer, (nn.Linear, *LAYER_NORMS)) or is_conv1d(layer)
    dim, groups = len(given) - 1 if is_last else 1, _groups(layer)
    incoming, outgoing = _first(given[dim], share_in, groups), _first(len(part.outgoing), share_out, groups)
    small = copy.deepcopy(layer)
    narrow_layer(small, outgoing, incoming if pairwise else None)
    sizes = [*given[:dim], int(incoming.sum()), *given[dim + 1 :]]
    any_parameter = next(iter(small.parameters()))
    return _seconds(small, (torch.randn(sizes, device=any_parameter.device, dtype=any_parameter.dtype),))


def _groups(layer: nn.Module) -> int:
    """How many groups a layer's channels are in that go as a whole; 1 if they go one by one."""
    return layer.num_groups if isinstance(layer, nn.GroupNorm) else int(getattr(layer, "groups", 1))


def _first(count: int, share: float, groups: int) -> torch.Tensor:
    """The first channels, about this share of them, and whole groups if there are any."""
    size = count // groups if groups > 1 else 1
    return torch.arange(count) < size * max(1, round(share * count / size))


@torch.no_grad()
def _seconds(module: Callable[..., Any], inputs: tuple[Any, ...]) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer(
        "module(*inputs)", globals={"module": module, "inputs": inputs}, num_threads=torch.get_num_threads()
    )
    return float(timer.blocked_autorange(min_run_time=SECONDS).median)
