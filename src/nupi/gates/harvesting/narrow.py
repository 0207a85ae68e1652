"""Remove channels from plain layers, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from nupi.gates.harvesting.rules import BATCH_NORMS, CONVOLUTIONS, LAYER_NORMS, NARROWED
from nupi.gates.layers import is_conv1d
from nupi.gates.norms import OVER_OPEN

if TYPE_CHECKING:
    from torch import fx

    from nupi.gates.harvesting.flow import Walk


def narrow(walk: Walk) -> dict[str, tuple[int, int]]:
    """Narrow every layer to the channels that must stay. Returns by layer how many are left and how many there were."""
    left: dict[str, tuple[int, int]] = {}
    for node, flow in walk.flows.items():
        module = walk.module(node)
        if not isinstance(module, NARROWED):
            continue
        outgoing = walk.channels.stays(flow.numbers)
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            left[str(node.target)] = int(outgoing.sum()), len(outgoing)
        narrow_layer(module, outgoing, _incoming(walk, node))
    return left


def narrow_layer(
    module: nn.Module, outgoing: torch.Tensor | None = None, incoming: torch.Tensor | None = None
) -> None:
    """Keep only these output and input channels of a layer, in place; None keeps all."""
    if isinstance(module, CONVOLUTIONS):
        _narrow_convolution(module, outgoing, incoming)
    elif isinstance(module, nn.Linear):
        _select(module, "weight", outgoing, incoming)
        _select(module, "bias", outgoing)
        module.out_features, module.in_features = module.weight.shape
    elif is_conv1d(module):
        _select(module, "weight", incoming, outgoing)
        _select(module, "bias", outgoing)
        module.__dict__["nx"], module.__dict__["nf"] = module.get_parameter("weight").shape
    elif isinstance(module, BATCH_NORMS):
        for name in ("weight", "bias", "running_mean", "running_var"):
            _select(module, name, outgoing)
        module.num_features = module.num_features if outgoing is None else int(outgoing.sum())
    elif isinstance(module, (*LAYER_NORMS, nn.GroupNorm)) and outgoing is not None:
        _narrow_norm(module, outgoing)


def _incoming(walk: Walk, node: fx.Node) -> torch.Tensor | None:
    source = walk.source(node)
    return None if source is None else walk.channels.stays(source.numbers)


def _narrow_convolution(
    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, outgoing: torch.Tensor | None, incoming: torch.Tensor | None
) -> None:
    grouped, before = conv.groups > 1, conv.out_channels
    _select(conv, "weight", outgoing, None if grouped else incoming)
    _select(conv, "bias", outgoing)
    conv.out_channels = len(conv.weight)
    conv.groups = conv.groups * conv.out_channels // before if grouped else 1  # groups are removed as a whole
    conv.in_channels = conv.weight.shape[1] * conv.groups


def _narrow_norm(norm: nn.LayerNorm | nn.RMSNorm | nn.GroupNorm, outgoing: torch.Tensor) -> None:
    left = int(outgoing.sum())
    for name in ("weight", "bias"):
        if name in norm._parameters:
            _select(norm, name, outgoing)
    if isinstance(norm, nn.GroupNorm):
        norm.num_groups = norm.num_groups * left // norm.num_channels
        norm.num_channels = left
        return
    if OVER_OPEN not in norm.__dict__ and isinstance(norm, nn.RMSNorm):
        _rescale(norm, norm.normalized_shape[0] / left)
    norm.normalized_shape = (left,)
    norm.__dict__.pop(OVER_OPEN, None)  # only open channels are left, so it is a plain norm now


def _rescale(norm: nn.RMSNorm, ratio: float) -> None:
    """Correct scale and eps after zeros have left the mean. `ratio`: the number of channels before, over that now."""
    norm.eps = (torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps) * ratio
    with torch.no_grad():
        norm.weight.mul_(ratio**0.5)


def _select(
    module: nn.Module, name: str, rows: torch.Tensor | None, columns: torch.Tensor | None = None
) -> None:
    """Keep only these rows and columns of a parameter or buffer, if there is one; None keeps all."""
    tensor: torch.Tensor | None = getattr(module, name)
    if tensor is None or all(which is None or bool(which.all()) for which in (rows, columns)):
        return
    chosen = tensor.detach()
    if rows is not None:
        chosen = chosen[rows.nonzero().flatten().to(tensor.device)]
    if columns is not None:
        chosen = chosen[:, columns.nonzero().flatten().to(tensor.device)]
    chosen = chosen.clone(memory_format=_memory_format(tensor))
    setattr(
        module, name, nn.Parameter(chosen, tensor.requires_grad) if name in module._parameters else chosen
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format of the tensor. The narrow one keeps it, because another would run at another speed."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is not None:
        strides = torch.empty(tensor.shape, device="meta", memory_format=last).stride()
        if tensor.stride() == strides:
            return last
    return torch.contiguous_format
