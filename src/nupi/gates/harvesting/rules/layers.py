"""Layers with weights. Those that mix channels make new ones; the others pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nupi.gates.harvesting.channels import Flow
from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, of_followed, shape
from nupi.gates.norms import OVER_OPEN

if TYPE_CHECKING:
    from torch import fx

    from nupi.gates.harvesting.flow import Walk

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYER_NORMS = (nn.LayerNorm, nn.RMSNorm)
NARROWED = (*CONVOLUTIONS, *BATCH_NORMS, *LAYER_NORMS, nn.GroupNorm, nn.Linear)


def _convolution(walk: Walk, node: fx.Node, conv: Any) -> Flow | None:
    source = walk.source(node)
    if len(shape(node)) != conv.weight.dim():
        raise NotCoveredError("its input has no batch dimension")
    if source is not None and source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    if conv.groups > 1:
        return _grouped_convolution(walk, node, conv, source)
    if source is not None:
        walk.use(source, node)
    return walk.start(node, 1, conv.weight, conv.bias)


def _grouped_convolution(walk: Walk, node: fx.Node, conv: Any, source: Flow | None) -> Flow:
    """Unite all inputs and outputs of a group: they stay or go together. A depthwise group has one of each."""
    if source is None:
        raise NotCoveredError("its groups stay or go with its input channels, which cannot be followed")
    conditions, numbers = walk.channels.conditions, source.numbers
    if not conv.groups == conv.in_channels == conv.out_channels:
        numbers = walk.channels.new(conv.out_channels)
        groups = [each.view(conv.groups, -1) for each in (source.numbers, numbers)]
        walk.channels.tie(torch.cat(groups, 1), str(node.target))
    alive = _some_of_group(walk, source.alive.view(conv.groups, -1))
    alive = alive.repeat_interleave(conv.out_channels // conv.groups)
    alive = conditions.every(alive, walk.alive(node, conv.weight))
    if conv.bias is not None:
        alive = conditions.some(alive, walk.alive(node, conv.bias))
    return Flow(numbers, alive, 1, shape(node))


def _some_of_group(walk: Walk, alive: torch.Tensor) -> torch.Tensor:
    """By row, the condition that one of its channels is alive."""
    found = alive[:, 0]
    for other in alive[:, 1:].T:
        found = walk.channels.conditions.some(found, other)
    return found


def _linear(walk: Walk, node: fx.Node, linear: Any) -> Flow | None:
    source = walk.source(node)
    if source is not None:
        if source.dim != len(source.shape) - 1:
            raise NotCoveredError("it acts on another dimension than the channels'")
        walk.use(source, node)
    return walk.start(node, len(shape(node)) - 1, linear.weight, linear.bias)


@of_followed
def _batch_norm(walk: Walk, node: fx.Node, norm: Any, source: Flow) -> Flow | None:
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    if norm.weight is None:
        return source.always_alive(shape(node))
    return source.but(shape(node), _affine(walk, node, norm))


@of_followed
def _layer_norm(walk: Walk, node: fx.Node, norm: Any, source: Flow) -> Flow | None:
    """Closed channels of a layer or RMS norm can go if its mean is over the open ones, or if it can be rescaled.

    An RMS norm without gates over N channels, of which n are not zero, equals one over these n with another scale and
    eps e: x w / sqrt(S / N + e) = x w sqrt(N / n) / sqrt(S / n + e N / n), where S is the sum of squares.
    """
    if source.dim != len(source.shape) - 1 or len(norm.normalized_shape) != 1:
        raise NotCoveredError("it acts on another dimension than the channels'")
    if OVER_OPEN in norm.__dict__:
        return source.but(shape(node), _affine(walk, node, norm))
    if isinstance(norm, nn.LayerNorm) or norm.weight is None:
        why = "has no weight to correct for it" if isinstance(norm, nn.RMSNorm) else "subtracts it"
        raise NotCoveredError(
            f"it takes its mean over all channels, closed ones too, and {why}; put the gates into it"
        )
    walk.use(source, node)  # a channel that is not zero changes the mean
    return source.but(
        shape(node), walk.channels.conditions.every(source.alive, walk.alive(node, norm.weight))
    )


@of_followed
def _group_norm(walk: Walk, node: fx.Node, norm: Any, source: Flow) -> Flow | None:
    """The groups of a group norm stay or go as a whole."""
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    groups = source.numbers.view(norm.num_groups, -1)
    walk.channels.tie(groups, str(node.target))
    if norm.weight is None:  # zeros give zero
        alive = _some_of_group(walk, source.alive.view(norm.num_groups, -1))
        return source.but(shape(node), alive.repeat_interleave(groups.shape[1]))
    return source.but(shape(node), _affine(walk, node, norm))


def _affine(walk: Walk, node: fx.Node, norm: Any) -> torch.Tensor:
    """By channel, the condition that the norm's weight or bias is not zero."""
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
