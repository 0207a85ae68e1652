"""A rule for each kind of layer or operation: what it does to the channels that come in."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx, nn
from torch.nn import functional

from nupi.gates.graph import shape_of
from nupi.gates.harvesting.channels import Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.gates.harvesting.flow import Walk


class NotCoveredError(Exception):
    """This use of a known layer or operation is not covered."""


Rule: TypeAlias = "Callable[[Walk, fx.Node, Any], Flow | None]"

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# f(0) = 0: a channel that is zero stays so.
ZERO_TO_ZERO: set[Any] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Hardswish, nn.Softsign, nn.Tanhshrink, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
    *(functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.selu),
    *(functional.celu, functional.gelu, functional.silu, functional.mish, functional.hardswish),
    *(functional.dropout, functional.dropout2d, torch.relu, torch.tanh, torch.abs, torch.square),
    *("relu", "relu_", "tanh", "abs", "square", "contiguous", "clone", "detach"),
}
# f(0) is something else: the channel goes on, but it is no longer zero.
LIGHTS_UP: set[Any] = {
    *(nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.LogSigmoid),
    *(torch.sigmoid, functional.sigmoid, functional.hardsigmoid, functional.softplus, torch.exp),
    *("sigmoid", "exp"),
}
# Reductions within a channel, in which zeros give zero.
POOLS: set[Any] = {
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample),
    *(functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d),
    *(functional.adaptive_max_pool2d, functional.interpolate),
}
SUMS: set[Any] = {operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub, "add"}
PRODUCTS: set[Any] = {operator.mul, operator.imul, torch.mul, "mul"}
CATS: set[Any] = {torch.cat, torch.concat}
FLATTENS: set[Any] = {nn.Flatten, torch.flatten, "flatten"}
RESHAPES: set[Any] = {"view", "reshape", torch.reshape}
MEANS: set[Any] = {torch.mean, "mean"}
SIZES: set[Any] = {"size", getattr}


def _convolution(walk: Walk, node: fx.Node, conv: Any) -> Flow | None:
    source = walk.source(node)
    if len(_shape(node)) != conv.weight.dim():
        raise NotCoveredError("its input has no batch dimension")
    if source is not None and conv.groups == conv.in_channels == conv.out_channels and conv.groups > 1:
        if source.dim != 1:
            raise NotCoveredError("its channels are not in dimension 1")
        own = (conv.weight == 0).flatten(1).all(1).cpu()
        no_bias = torch.ones_like(own) if conv.bias is None else (conv.bias == 0).cpu()
        return source.but(_shape(node), (source.zero | own) & no_bias)
    if conv.groups > 1:
        raise NotCoveredError("groups of channels cannot be narrowed one by one")
    if source is not None:
        if source.dim != 1:
            raise NotCoveredError("its channels are not in dimension 1")
        walk.use(source)
    return walk.start(node, 1, conv.weight, conv.bias)


def _linear(walk: Walk, node: fx.Node, linear: Any) -> Flow | None:
    source = walk.source(node)
    if source is not None:
        if source.dim != len(source.shape) - 1:
            raise NotCoveredError("it acts on another dimension than the channels'")
        walk.use(source)
    return walk.start(node, len(_shape(node)) - 1, linear.weight, linear.bias)


def _batch_norm(walk: Walk, node: fx.Node, norm: Any) -> Flow | None:
    source = walk.source(node)
    if source is None:
        return None
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    if norm.weight is None:
        return source.nowhere_zero(_shape(node))
    return source.but(_shape(node), ((norm.weight == 0) & (norm.bias == 0)).cpu())


def _zero_to_zero(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    source = walk.source(node)
    return None if source is None else source.but(_shape(node))


def _lights_up(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    source = walk.source(node)
    return None if source is None else source.nowhere_zero(_shape(node))


def _pool(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    source = walk.source(node)
    if source is not None and (source.dim != 1 or len(_shape(node)) != len(source.shape)):
        raise NotCoveredError("its channels are not in dimension 1")
    return None if source is None else source.but(_shape(node))


def _mean(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    source = walk.source(node)
    if source is None:
        return None
    dims = _argument(node, 1, "dim", source.dim)
    reduced = dims if isinstance(dims, tuple | list) else [dims]
    if any(not isinstance(d, int) or d % len(source.shape) <= source.dim for d in reduced):
        raise NotCoveredError("it must be over dimensions behind the channels'")
    return source.but(_shape(node))


def _flatten(walk: Walk, node: fx.Node, module: Any) -> Flow | None:
    source = walk.source(node)
    if source is None:
        return None
    if module is not None:
        first, last = module.start_dim, module.end_dim
    else:
        first, last = _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)
    if first != 1 or last not in (-1, len(source.shape) - 1):
        raise NotCoveredError("it must flatten all but the batch, as flatten(1) does")
    return _flat(node, source)


def _reshape(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    source = walk.source(node)
    if source is None:
        return None
    shape = _argument(node, 1, "shape", ())
    sizes = shape if isinstance(shape, tuple | list) else node.args[1:]
    if len(sizes) != 2 or sizes[1] != -1 or _shape(node)[0] != source.shape[0]:
        raise NotCoveredError("only (batch, -1) has room for fewer channels; use flatten(1)")
    return _flat(node, source)


def _flat(node: fx.Node, source: Flow) -> Flow:
    if source.dim != 1:
        raise NotCoveredError("its channels are not in dimension 1")
    times = math.prod(source.shape[2:])
    return Flow(
        source.numbers.repeat_interleave(times), source.zero.repeat_interleave(times), 1, _shape(node)
    )


def _cat(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    parts, dim = _argument(node, 0, "tensors", ()), _argument(node, 1, "dim", 0)
    if not isinstance(parts, tuple | list):
        raise NotCoveredError("its tensors must be listed one by one")
    known = [walk.flows[part] for part in parts if part in walk.flows]
    if len(known) < len(parts) or any(dim not in (flow.dim, flow.dim - len(flow.shape)) for flow in known):
        raise NotCoveredError("it must join layers' outputs along their channels")
    return Flow(
        torch.cat([flow.numbers for flow in known]),
        torch.cat([flow.zero for flow in known]),
        known[0].dim,
        _shape(node),
    )


def _sum(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    return _combined(walk, node, torch.logical_and)


def _product(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    return _combined(walk, node, torch.logical_or)


def _combined(
    walk: Walk, node: fx.Node, zero: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Flow | None:
    """A sum is zero where both are, a product where either is."""
    operands = node.args[:2]
    flows = [walk.flows[each] for each in operands if isinstance(each, fx.Node) and each in walk.flows]
    if not flows:
        return None
    first = flows[0]
    if len(flows) == 1 and any(isinstance(each, int | float) for each in operands):
        constant = zero(first.zero, torch.zeros_like(first.zero))
        return first.but(_shape(node), constant)
    fits = len(flows) == 2 and first.dim == flows[1].dim and len(first.shape) == len(flows[1].shape)
    if not fits or len(first.numbers) != len(flows[1].numbers):
        raise NotCoveredError("both sides must have the same channels")
    walk.channels.unite(first.numbers, flows[1].numbers)
    return first.but(_shape(node), zero(first.zero, flows[1].zero))


def _size(walk: Walk, node: fx.Node, _: Any) -> None:
    """Asking for a size is harmless unless it is the number of channels."""
    source = walk.source(node)
    if source is None:
        return
    if node.target is getattr and node.args[1] in ("dtype", "device", "ndim"):
        return
    if node.target is getattr and node.args[1] != "shape":
        raise NotCoveredError(f"it reads {node.args[1]!r}")
    asked = [node.args[1]] if node.target == "size" and len(node.args) > 1 else None
    if asked is None:
        asked = [
            user.args[1] if user.target is operator.getitem else None
            for user in node.users
            if user.users  # an unpacked size that nothing reads is harmless
        ]
    if any(not isinstance(d, int) or d % len(source.shape) == source.dim for d in asked):
        raise NotCoveredError("it may read the number of channels")


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _shape(node: fx.Node) -> torch.Size:
    shape = shape_of(node)
    assert shape is not None  # the walk asks no rule about what is not a tensor
    return shape


RULES: dict[Any, Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    nn.Linear: _linear,
    **dict.fromkeys(ZERO_TO_ZERO, _zero_to_zero),
    **dict.fromkeys(LIGHTS_UP, _lights_up),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(MEANS, _mean),
    **dict.fromkeys(FLATTENS, _flatten),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(CATS, _cat),
    **dict.fromkeys(SUMS, _sum),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(SIZES, _size),
}
