"""Say why closed channels cannot be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.gates.densities import gated_layers
from nupi.gates.graph import trace
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.channels import LAST
from nupi.gates.harvesting.checks import copied
from nupi.gates.harvesting.flow import Walk
from nupi.gates.transformer.layers import GatedInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx, nn

    from nupi.gates.call import Call


def stuck_for_good(model: nn.Module, call: Call) -> dict[str, str]:
    """By gated layer, why its channels would have to stay even if all gates of the model were closed.

    Raises:
        UntraceableError: as `trace` does.
    """
    plain = copied(model)
    with torch.no_grad():
        for layer in gated_layers(plain).values():
            layer.gate.close_(torch.ones_like(layer.gate.log_alpha, dtype=torch.bool))
    closed = closed_channels(plain)
    bake(plain)
    return {} if closed is None else stuck_channels(Walk(plain, trace(plain, call)), closed)


def closed_channels(model: nn.Module) -> dict[str, tuple[str, torch.Tensor]] | None:
    """By layer with gates on its outputs, the name of the module that has the gates, and which gates are closed.

    None if the model has no such layer.
    """
    names = {module: name for name, module in model.named_modules()}
    layers = {
        layer: module for layer, module in gated_layers(model).items() if not isinstance(module, GatedInput)
    }
    closed = {
        layer: (names[module], ~module.gate.is_open().cpu())
        for layer, module in layers.items()
        if module.gate.log_alpha.dim() == 1
    }
    return closed if layers else None


def stuck_channels(walk: Walk, closed: Mapping[str, tuple[str, torch.Tensor]]) -> dict[str, str]:
    """By layer, why closed channels cannot be removed; only layers that have such channels."""
    stuck: dict[str, str] = {}
    nodes = {node.target: node for node in (*walk.flows, *walk.lost) if node.op == "call_module"}
    for layer, (name, is_closed) in closed.items():
        if not is_closed.any():
            continue
        if name not in nodes:
            stuck[layer] = _unseen(walk, name, nodes)
            continue
        flow = walk.flows.get(nodes[name])
        if flow is None:
            stuck[layer] = f"its output {walk.lost[nodes[name]]}"
            continue
        # One gate may switch a group of channels.
        positions = is_closed.repeat_interleave(len(flow.numbers) // len(is_closed))
        for number in flow.numbers[positions].tolist():
            why = walk.channels.reason(number)
            if why not in (None, LAST):
                stuck[layer] = f"one of them {why}"
                break
    return stuck


def _unseen(walk: Walk, name: str, nodes: Mapping[Any, fx.Node]) -> str:
    """Say why the graph has no call of this module."""
    around = next((node for target, node in nodes.items() if name.startswith(f"{target}.")), None)
    if around is None:
        return "the forward pass never calls it"
    return f"it is inside {around.target!r} ({type(walk.module(around)).__name__}), whose inside harvest does not see"
