"""Operations on the other dimensions than the channels': pooling, padding, reductions, indices, other shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.nn import functional

from nupi.gates.harvesting.channels import Flow
from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, argument, arguments, of_followed, shape

if TYPE_CHECKING:
    from nupi.gates.harvesting.flow import Walk

# A channel of zeros is reduced to zero.
POOLS: set[Any] = {
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d),
    *(functional.max_pool1d, functional.max_pool2d, functional.avg_pool1d, functional.avg_pool2d),
    *(functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d),
    *(functional.interpolate, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
}
REDUCTIONS: set[Any] = {torch.mean, "mean", torch.sum, "sum", torch.amax, "amax", torch.amin, "amin"}
FLATTENS: set[Any] = {nn.Flatten, torch.flatten, "flatten"}
RESHAPES: set[Any] = {"view", "reshape", torch.reshape}
SQUEEZES: set[Any] = {"squeeze", torch.squeeze, "unsqueeze", torch.unsqueeze}
PERMUTATIONS: set[Any] = {"permute", torch.permute}
NOT_SECOND = "its channels are not in dimension 1"


@of_followed
def _pool(_walk: Walk, node: fx.Node, module: Any, source: Flow) -> Flow | None:
    name = type(module).__name__ if module is not None else getattr(node.target, "__name__", "")
    meant = [
        2 + int(letter) for letter in name if letter.isdigit()
    ]  # a 2d pool also takes 3 dimensions: no batch
    if source.dim != 1 or (meant and meant != [len(source.shape)]):
        raise NotCoveredError(NOT_SECOND)
    return source.but(shape(node))


@of_followed
def _pad(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    widths = argument(node, 1, "pad", None)
    if not isinstance(widths, tuple | list) or len(widths) // 2 >= len(source.shape) - source.dim:
        raise NotCoveredError("it must pad behind the channels")
    if argument(node, 3, "value", None) not in (None, 0):
        return source.always_alive(shape(node))
    return source.but(shape(node))


@of_followed
def _reduction(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    dims = argument(node, 1, "dim", None)
    reduced = dims if isinstance(dims, tuple | list) else [dims]
    if not reduced or any(not isinstance(d, int) or d % len(source.shape) == source.dim for d in reduced):
        raise NotCoveredError("it must be over dimensions other than the channels'")
    gone = len(shape(node)) < len(source.shape) and sum(d % len(source.shape) < source.dim for d in reduced)
    return replace(source.but(shape(node)), dim=source.dim - gone)


@of_followed
def _flatten(_walk: Walk, node: fx.Node, module: Any, source: Flow) -> Flow | None:
    if module is not None:
        first, last = module.start_dim, module.end_dim
    else:
        first, last = argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1)
    if first % len(source.shape) > source.dim:
        return source.but(shape(node))
    if first != 1 or last not in (-1, len(source.shape) - 1):
        raise NotCoveredError(
            "it must flatten all but the batch, as flatten(1) does, or what is behind the channels"
        )
    return _flat(node, source)


@of_followed
def _reshape(walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    sizes, new, here = arguments(node, "shape"), shape(node), source.dim
    elsewhere = [size for place, size in enumerate(sizes) if place != here and isinstance(size, fx.Node)]
    if any(size in walk.sizes for size in elsewhere):
        raise NotCoveredError("it reads the number of channels for another dimension")
    if len(sizes) == 2 and sizes[1] == -1 and new[0] == source.shape[0]:
        return _flat(node, source)
    if len(sizes) > here and new[: here + 1] == source.shape[: here + 1]:
        if sizes[here] == -1:
            return source.but(new)
        width = walk.sizes.get(sizes[here])
        if isinstance(width, Flow):  # a size read at run time: right if both tensors lose the same channels
            walk.channels.unite(source.numbers, width.numbers)
            return source.but(new)
    raise NotCoveredError(
        "its sizes are fixed, so fewer channels do not fit; use flatten(1), -1, or x.size(...)"
    )


def _flat(node: fx.Node, source: Flow) -> Flow:
    if source.dim != 1:
        raise NotCoveredError(NOT_SECOND)
    times = math.prod(source.shape[2:])
    return Flow(
        source.numbers.repeat_interleave(times), source.alive.repeat_interleave(times), 1, shape(node)
    )


@of_followed
def _squeeze(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    longest = max(len(source.shape), len(shape(node)))
    dims = arguments(node, "dim")
    if not dims or any(not isinstance(d, int) or d % longest <= source.dim for d in dims):
        raise NotCoveredError("it must name dimensions behind the channels")
    return source.but(shape(node))


@of_followed
def _transpose(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    """Dimensions change places, and the channels with them."""
    count = len(source.shape)
    order = list(range(count))
    if node.target in PERMUTATIONS:
        order = [d % count if isinstance(d, int) else -1 for d in arguments(node, "dims")]
    else:
        first, second = argument(node, 1, "dim0", None), argument(node, 2, "dim1", None)
        if not isinstance(first, int) or not isinstance(second, int):
            raise NotCoveredError("its dimensions must be numbers")
        order[first], order[second] = order[second], order[first]
    if sorted(order) != list(range(count)):
        raise NotCoveredError("its dimensions must be numbers")
    return replace(source.but(shape(node)), dim=order.index(source.dim))


@of_followed
def _softmax(_walk: Walk, node: fx.Node, module: Any, source: Flow) -> Flow | None:
    """A softmax over another dimension maps zeros to equal shares, not to zeros."""
    dim = module.dim if module is not None else argument(node, 1, "dim", None)
    if not isinstance(dim, int) or dim % len(source.shape) == source.dim:
        raise NotCoveredError("it must be over another dimension than the channels'")
    return source.always_alive(shape(node))


@of_followed
def index(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    """`x[...]` with numbers, slices and None, if it takes all channels."""
    asked = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    old = 0  # the dimension that the next entry indexes
    left: list[int | None] = []  # for each dimension of the result, which it was before; None for new ones
    for each in asked:
        if each is None:
            left.append(None)
            continue
        if type(each) is not int and not isinstance(each, slice):
            raise NotCoveredError("its index may have only numbers, slices and None")
        if old == source.dim and each != slice(None):
            raise NotCoveredError("it must take all channels, as [:, :, 0, 0] does")
        if isinstance(each, slice):
            left.append(old)
        old += 1
    left.extend(range(old, len(source.shape)))
    return replace(source.but(shape(node)), dim=left.index(source.dim))


SPACE: dict[Any, Rule] = {
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(FLATTENS, _flatten),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(SQUEEZES, _squeeze),
    **dict.fromkeys({*PERMUTATIONS, "transpose", torch.transpose, "swapaxes"}, _transpose),
    **dict.fromkeys({nn.Softmax, functional.softmax, torch.softmax, "softmax"}, _softmax),
    functional.pad: _pad,
}
