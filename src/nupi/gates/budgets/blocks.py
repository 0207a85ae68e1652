"""The parts of a transformer: the layers of its gated blocks, and the attention between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.gates.budgets.parts import Network, Part, always, call_shapes, gate_numbers
from nupi.gates.harvesting.conditions import Conditions
from nupi.gates.harvesting.footprint import flops_of
from nupi.gates.transformer.blocks import blocks, widths

if TYPE_CHECKING:
    from torch import nn

    from nupi.gates.call import Call
    from nupi.gates.transformer.blocks import Block


def block_network(model: nn.Module, plain: nn.Module, call: Call) -> Network:
    """The parts of a gated transformer, found by the names of its layers; arguments as for `network`."""
    conditions, gates = Conditions(), gate_numbers(model)
    shapes, counts = call_shapes(plain, call), flops_of(plain, call)
    parts = []
    for block in blocks(plain):
        if block.user not in gates:
            continue
        alive = torch.tensor([conditions.gate(number) for number in gates[block.user]])
        for maker in block.makers:
            outgoing = alive.repeat_interleave(maker.size).repeat(maker.copies)
            # Attention to another tensor reads this layer's weights directly, so its cost counts for the attention.
            calls = shapes[maker.name][1] if maker.name in shapes else None
            parts.append(_linear(plain, maker.name, None, outgoing, calls))
        incoming = alive.repeat_interleave(block.size)
        parts.append(_linear(plain, block.user, incoming, None, shapes[block.user][1]))
        if block.kind == "heads":
            parts.append(_attention(plain, block, alive, counts))
    return Network(parts, conditions)


def _linear(
    model: nn.Module,
    name: str,
    incoming: torch.Tensor | None,
    outgoing: torch.Tensor | None,
    output: torch.Size | None,
) -> Part:
    layer = model.get_submodule(name)
    inside, outside = widths(layer)
    calls = 0.0 if output is None else output.numel() / outside
    bias = float(getattr(layer, "bias", None) is not None)
    return Part(
        name,
        always(inside) if incoming is None else incoming,
        always(outside) if outgoing is None else outgoing,
        (1, bias),
        (2 * calls, 0),
    )


def _attention(model: nn.Module, block: Block, alive: torch.Tensor, counts: dict[str, int]) -> Part:
    """The part that computes scores and weighted averages: each head costs the same."""
    inside = sum(
        counts.get(f"{type(model).__name__}.{name}", 0)
        for name in block.layers
        if name.startswith(f"{block.core}.")
    )
    own = counts.get(f"{type(model).__name__}.{block.core}", 0) - inside
    return Part(block.core, always(1), alive, (0, 0), (0, own / block.gates))
