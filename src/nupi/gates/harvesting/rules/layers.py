"""Layers with weights: those that mix channels start new ones, the others hand them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, shape
from nupi.gates.norms import OVER_OPEN

if TYPE_CHECKING:
    import torch
    from torch import fx

    from nupi.gates.harvesting.channels import Flow
    from nupi.gates.harvesting.flow import Walk

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYER_NORMS = (nn.LayerNorm, nn.RMSNorm)
NARROWED = (*CONVOLUTIONS, *BATCH_NORMS, *LAYER_NORMS, nn.GroupNorm, nn.Linear)


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
    return source.but(shape(node), _affine(walk, node, norm))


def _layer_norm(walk: Walk, node: fx.Node, norm: Any) -> Flow | None:
    """A norm over the channels: closed ones may go only if its mean was over the open ones."""
    source = walk.source(node)
    if source is None:
        return None
    if source.dim != len(source.shape) - 1 or len(norm.normalized_shape) != 1:
        raise NotCoveredError("it acts on another dimension than the channels'")
    if OVER_OPEN not in norm.__dict__:
        raise NotCoveredError("it takes its mean over all channels, closed ones too; put the gates into it")
    return source.but(shape(node), _affine(walk, node, norm))


def _group_norm(walk: Walk, node: fx.Node, norm: Any) -> Flow | None:
    """A norm over groups of channels: these stay or go as a whole."""
    source = walk.source(node)
    if source is None:
        return None
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    groups = source.numbers.view(norm.num_groups, -1)
    for position in range(1, groups.shape[1]):
        walk.channels.unite(groups[:, 0], groups[:, position])
    if norm.weight is None:  # zeros give zero
        every_first = source.alive.view(norm.num_groups, -1)
        alive = every_first[:, 0]
        for position in range(1, groups.shape[1]):
            alive = walk.channels.conditions.some(alive, every_first[:, position])
        return source.but(shape(node), alive.repeat_interleave(groups.shape[1]))
    return source.but(shape(node), _affine(walk, node, norm))


def _affine(walk: Walk, node: fx.Node, norm: Any) -> torch.Tensor:
    """When a norm gives something else than zero, whatever goes in."""
    alive = walk.alive(node, norm.weight)
    bias = getattr(norm, "bias", None)
    return alive if bias is None else walk.channels.conditions.some(alive, walk.alive(node, bias))


LAYERS: dict[Any, Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    **dict.fromkeys(LAYER_NORMS, _layer_norm),
    nn.GroupNorm: _group_norm,
    nn.Linear: _linear,
}
