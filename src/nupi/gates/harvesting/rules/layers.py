"""Layers with weights: those that mix channels start new ones, the others hand them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, shape

if TYPE_CHECKING:
    from torch import fx

    from nupi.gates.harvesting.channels import Flow
    from nupi.gates.harvesting.flow import Walk

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _convolution(walk: Walk, node: fx.Node, conv: Any) -> Flow | None:
    source = walk.source(node)
    if len(shape(node)) != conv.weight.dim():
        raise NotCoveredError("its input has no batch dimension")
    if source is not None and conv.groups == conv.in_channels == conv.out_channels and conv.groups > 1:
        if source.dim != 1:
            raise NotCoveredError("its channels are not in dimension 1")
        conditions = walk.channels.conditions
        alive = conditions.every(source.alive, walk.alive(node, conv.weight))
        if conv.bias is not None:
            alive = conditions.some(alive, walk.alive(node, conv.bias))
        return source.but(shape(node), alive)
    if conv.groups > 1:
        raise NotCoveredError("groups of channels cannot be narrowed one by one")
    if source is not None:
        if source.dim != 1:
            raise NotCoveredError("its channels are not in dimension 1")
        walk.use(source, node)
    return walk.start(node, 1, conv.weight, conv.bias)


def _linear(walk: Walk, node: fx.Node, linear: Any) -> Flow | None:
    source = walk.source(node)
    if source is not None:
        if source.dim != len(source.shape) - 1:
            raise NotCoveredError("it acts on another dimension than the channels'")
        walk.use(source, node)
    return walk.start(node, len(shape(node)) - 1, linear.weight, linear.bias)


def _batch_norm(walk: Walk, node: fx.Node, norm: Any) -> Flow | None:
    source = walk.source(node)
    if source is None:
        return None
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    if norm.weight is None:
        return source.always_alive(shape(node))
    alive = walk.channels.conditions.some(walk.alive(node, norm.weight), walk.alive(node, norm.bias))
    return source.but(shape(node), alive)


LAYERS: dict[Any, Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    nn.Linear: _linear,
}
