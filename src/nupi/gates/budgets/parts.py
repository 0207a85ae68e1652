"""The cost of a network as a sum over parts (layers), each with its number of input and output channels.

    cost of a part = pair * input channels * output channels + single * output channels

A convolution has a weight for every pair of input and output channel, and a bias for every output channel. A norm has
two numbers for every channel. So a weight is removed with its input channel or with its output channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nupi.gates.densities import gated_layers
from nupi.gates.graph import trace, unchanged
from nupi.gates.harvesting.conditions import ALWAYS, Conditions
from nupi.gates.harvesting.flow import Walk
from nupi.gates.harvesting.rules import NARROWED

if TYPE_CHECKING:
    from nupi.gates.call import Call


@dataclass(frozen=True)
class Part:
    """One layer of the harvested network.

    Args:
        name: the name of the layer.
        incoming: for each input channel, the condition under which it stays.
        outgoing: for each output channel, the condition under which it stays.
        parameters: the number of parameters, (pair, single).
        flops: the number of FLOPs on the example, (pair, single).
    """

    name: str
    incoming: torch.Tensor
    outgoing: torch.Tensor
    parameters: tuple[float, float]
    flops: tuple[float, float]


@dataclass(frozen=True)
class Network:
    """The parts that depend on gates, and the conditions of their channels."""

    parts: list[Part]
    conditions: Conditions


def always(count: int) -> torch.Tensor:
    """Conditions of channels that always stay."""
    return torch.full((count,), ALWAYS)


def network(model: nn.Module, plain: nn.Module, call: Call) -> Network:
    """The parts of a gated model, found by its graph.

    Args:
        model: the gated model.
        plain: a copy of it, with the gates made part of the weights.
        call: the call whose FLOPs are counted.

    Raises:
        UntraceableError: as `trace` does.
    """
    walk = Walk(plain, trace(plain, call), gate_numbers(model))
    shapes = call_shapes(plain, call)
    parts = []
    for node, flow in walk.flows.items():
        module = walk.module(node)
        if not isinstance(module, NARROWED):
            continue
        source = walk.source(node)
        outgoing = walk.channels.needed(flow.numbers)
        incoming = None if source is None else walk.channels.needed(source.numbers)
        parts.append(part(str(node.target), module, incoming, outgoing, shapes[str(node.target)][1]))
    return Network(parts, walk.channels.conditions)


def part(
    name: str, module: nn.Module, incoming: torch.Tensor | None, outgoing: torch.Tensor, output: torch.Size
) -> Part:
    """The part for a layer. `incoming` is None if its input channels are not followed, so all of them stay."""
    weight: torch.Tensor | None = getattr(module, "weight", None)
    bias = getattr(module, "bias", None) is not None
    if weight is None or weight.dim() == 1:  # a norm
        own = 0 if weight is None else 1 + bias
        return Part(name, always(1), outgoing, (0, own), (0, 0))
    kernel, places = weight[0, 0].numel(), output.numel() / len(outgoing)
    if getattr(module, "groups", 1) > 1:
        # An output has weights only for the inputs of its group, and these stay or go with it.
        own = weight[0].numel()
        return Part(name, always(1), outgoing, (0, own + bias), (0, 2 * own * places))
    if incoming is None:
        incoming = always(weight.numel() // kernel // len(outgoing))
    return Part(name, incoming, outgoing, (kernel, int(bias)), (2 * kernel * places, 0))


def gate_numbers(model: nn.Module) -> dict[str, range]:
    """By the name of the module that has the gates, their numbers among all gates of the model."""
    names = {module: name for name, module in model.named_modules()}
    first, found = 0, {}
    for layer in gated_layers(model).values():
        found[names[layer]] = range(first, first + layer.gate.log_alpha.numel())
        first += layer.gate.log_alpha.numel()
    return found


def call_shapes(model: nn.Module, call: Call) -> dict[str, tuple[torch.Size, torch.Size]]:
    """By layer name, the shapes of its input and its output, in its last call on these inputs."""
    shapes: dict[str, tuple[torch.Size, torch.Size]] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            given = next(iter((*positional, *named.values())), None)
            if isinstance(output, torch.Tensor) and isinstance(given, torch.Tensor):
                shapes[name] = given.shape, output.shape

        return hook

    handles = [
        module.register_forward_hook(note(name), with_kwargs=True) for name, module in model.named_modules()
    ]
    try:
        with unchanged(model), torch.no_grad():
            call(model)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
