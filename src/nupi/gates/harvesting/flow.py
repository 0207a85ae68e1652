"""Follow the channels through a network, layer by layer.

A layer or operation without a rule keeps all channels that reach it, and the reason names it. Nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from nupi.gates.graph import shape_of
from nupi.gates.harvesting.channels import LAST, Channels, Flow
from nupi.gates.harvesting.conditions import ALWAYS
from nupi.gates.harvesting.rules import NARROWED, RESHAPES, RULES, SIZES, SPLITS, NotCoveredError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A class that defines only these computes the same as its base class.
CONSTRUCTION = {"__init__", "extra_repr", "reset_parameters", "__module__", "__doc__", "__annotations__"}
CONSTRUCTION |= {"__firstlineno__", "__static_attributes__"}  # from Python 3.13 on


class Walk:
    """Follows all channels in one pass over the graph of a plain model.

    Args:
        model: the plain model.
        graph: its graph, with the shapes of all tensors.
        gates: by the name of a layer or norm, the numbers of its gates. A channel is then alive if its gates are
            open, and always if it has none. Unless given, a channel is alive if its weights are not zero.

    Attributes:
        flows: by node, the channels of its tensor, if they could be followed.
        lost: by node, why they could not be followed.
        sizes: by node that reads a number of channels, whose number; a tuple if it reads several sizes.
        channels: all channels, and which of them must stay.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, gates: Mapping[str, range] | None = None) -> None:
        self.model = model
        self._gates = gates
        self.channels = Channels()
        self.flows: dict[fx.Node, Flow] = {}
        self.lost: dict[fx.Node, str] = {}
        self.sizes: dict[fx.Node, Flow | tuple[Flow | None, ...]] = {}
        self._shared = _shared_modules(model, graph)
        for node in graph.nodes:
            flow = self._visit(node)
            if flow is not None:
                self.flows[node] = flow
            else:
                inherited = [self.lost[source] for source in node.all_input_nodes if source in self.lost]
                self.lost.setdefault(node, inherited[0] if inherited else "comes straight from the input")
        for flow in self.flows.values():
            if not self.channels.stays(flow.numbers).any():
                self.channels.keep(flow.numbers[:1], LAST)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The layer that this node calls, or None."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def first(self, node: fx.Node) -> Any:
        """The node's first argument."""
        return next(iter((*node.args, *node.kwargs.values())), None)

    def source(self, node: fx.Node) -> Flow | None:
        """The channels of the node's first argument, or None if they could not be followed."""
        first = self.first(node)
        return self.flows.get(first) if isinstance(first, fx.Node) else None

    def start(self, node: fx.Node, dim: int, weight: torch.Tensor, bias: torch.Tensor | None) -> Flow:
        """New channels for the output of a layer with this weight and bias."""
        shape = shape_of(node)
        assert shape is not None
        alive = self.alive(node, weight)
        if bias is not None:
            alive = self.channels.conditions.some(alive, self.alive(node, bias))
        return Flow(self.channels.new(len(weight)), alive, dim, shape)

    def alive(self, node: fx.Node, weight: torch.Tensor) -> torch.Tensor:
        """By row of this weight of the node's layer, the condition under which the row is not zero."""
        if self._gates is None:
            return (
                (weight != 0).flatten(1).any(1).long().cpu()
                if weight.dim() > 1
                else (weight != 0).long().cpu()
            )
        own = self._gates.get(str(node.target))
        if own is None:
            return torch.full((len(weight),), ALWAYS)
        size = len(weight) // len(own)  # channels per gate: more than one if it switches a group
        return torch.tensor([self.channels.conditions.gate(gate) for gate in own]).repeat_interleave(size)

    def use(self, flow: Flow, node: fx.Node) -> None:
        """Note that the channels which are not zero must stay, because this node's layer uses them."""
        reason = (
            f"is not zero where {_named(node, self.module(node))} uses it: before that, something is added to it, or "
            "an operation maps 0 to another number"
        )
        self.channels.keep(flow.numbers, reason, flow.alive)

    def _visit(self, node: fx.Node) -> Flow | None:
        """The channels of a node's output; None, with the reason in `lost`, if they cannot be followed."""
        if node.op in ("placeholder", "get_attr"):
            return None
        module = self.module(node)
        kind: Any = node.target if module is None else _plain_type(module)
        rule = RULES.get(kind) if shape_of(node) is not None or kind in SIZES else None
        incoming = any(source in self.flows or source in self.sizes for source in node.all_input_nodes)
        if node.op == "output":
            reason = "is part of the model's output"
        elif module in self._shared:
            reason = f"goes into {node.target!r}, which is used twice, shares parameters, or has them read elsewhere"
        elif rule is None:
            reason = f"goes into {_named(node, module)}, which harvest does not support"
        elif self._misreads_size(node, kind):
            reason = f"goes into {_named(node, module)}, which may read the number of channels"
        else:
            try:
                flow = rule(self, node, module)
                if flow is not None or not incoming or kind in SIZES:
                    return flow
                reason = f"goes into {_named(node, module)}, called in a way that harvest does not support"
            except NotCoveredError as uncovered:
                reason = f"goes into {_named(node, module)}: {uncovered}"
        self._stop(node, reason)
        return None

    def _misreads_size(self, node: fx.Node, kind: Any) -> bool:
        """Whether the node reads a number of channels that no rule follows there."""
        read = {source for source in node.all_input_nodes if source in self.sizes}
        if kind in SPLITS:
            return bool(read) and self.first(node) not in self.flows
        return bool(read) and kind not in RESHAPES and not (kind in SIZES and read == {self.first(node)})

    def _stop(self, node: fx.Node, reason: str) -> None:
        """Keep all channels that the node gets, and those whose number it gets."""
        self.lost[node] = reason
        for source in node.all_input_nodes:
            read = self.sizes.get(source, self.flows.get(source))
            for flow in read if isinstance(read, tuple) else (read,):
                if flow is not None:
                    self.channels.keep(flow.numbers, reason)


def _plain_type(module: nn.Module) -> type[nn.Module]:
    """The type whose rule applies: torch's, if the user's subclass changes only how the layer is built."""
    for base in type(module).__mro__:
        if base in RULES:
            return base
        if not set(vars(base)) <= CONSTRUCTION:
            break
    return type(module)


def _named(node: fx.Node, module: nn.Module | None) -> str:
    if module is not None:
        return f"{node.target!r} ({type(module).__name__})"
    return (
        f"{node.target if isinstance(node.target, str) else getattr(node.target, '__name__', node.target)}()"
    )


def _shared_modules(model: nn.Module, graph: fx.Graph) -> set[nn.Module]:
    """The layers that are called twice, share a parameter, or have a parameter that is read outside the layer."""
    called = [model.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"]
    calls = Counter(called)
    owners = Counter(parameter for module in calls for parameter in module.parameters())
    read = {
        model.get_submodule(str(node.target).rpartition(".")[0])
        for node in graph.nodes
        if node.op == "get_attr"
    }
    with_parameters = {module for module in calls if isinstance(module, NARROWED)}
    return {
        module
        for module in with_parameters
        if module in read or calls[module] > 1 or any(owners[each] > 1 for each in module.parameters())
    }
