"""Operations that move elements: filling, joining, padding, and the gradients of views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.solve.native.builder import Lane
from nupi.solve.native.operations import UnsupportedError, number
from nupi.solve.native.pieces import Read, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.solve.native.builder import Builder, Tensor


def copied(build: Builder, value: Lane) -> Lane:
    """A new tensor with the elements of a view."""
    made = build.new(value.shape, truth=value.buffer.truth)
    build.compute(made, "{0}", [value])
    return made


def cat(build: Builder, tensors: list[Tensor], dim: int = 0) -> Lane:
    """Tensors one after another along a dimension."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(each.shape[dim] for each in tensors)
    truth = any(isinstance(each, Lane) and each.buffer.truth for each in tensors)
    joined = build.new(shape, truth=truth)
    start = 0
    for each in tensors:
        place = joined.index.narrow(dim, start, each.shape[dim])
        build.compute(Lane(joined.buffer, place), "{0}", [each])
        start += each.shape[dim]
    return joined


def stack(build: Builder, tensors: list[Tensor], dim: int = 0) -> Lane:
    """Tensors one after another along a new dimension."""
    dim = dim % (len(tensors[0].shape) + 1)
    return cat(
        build,
        [
            Lane(each.buffer, each.index.unsqueeze(dim)) if isinstance(each, Lane) else each.unsqueeze(dim)
            for each in tensors
        ],
        dim,
    )


def pad(build: Builder, given: Lane, pad: list[int], value: float = 0.0) -> Lane:
    """Add elements at both ends of dimensions, from the last dimension on; a negative number removes elements."""
    index, shape = given.index, list(given.shape)
    places = []
    ends = zip(pad[::2], pad[1::2], strict=True)
    for dimension, (low, high) in zip(range(len(shape) - 1, -1, -1), ends, strict=False):
        index = index.narrow(dimension, max(0, -low), shape[dimension] + min(0, low) + min(0, high))
        places.append((dimension, max(0, low), index.shape[dimension]))
        shape[dimension] += low + high
    padded = build.new(shape)
    build.compute(padded, number(float(value)), [])
    inside = padded.index
    for dimension, start, length in places:
        inside = inside.narrow(dimension, start, length)
    build.compute(Lane(padded.buffer, inside), "{0}", [Lane(given.buffer, index)])
    return padded


def backward_of_view(view: Callable[..., torch.Tensor]) -> Callable[..., Lane]:
    """The gradient of a view: the gradient of its result at the places of the view, zeros elsewhere."""

    def backward(build: Builder, grad_output: Tensor, input_sizes: list[int], **options: Any) -> Lane:
        whole = build.new(input_sizes)
        build.compute(whole, number(0), [])
        build.compute(Lane(whole.buffer, view(whole.index, **options)), "{0}", [grad_output])
        return whole

    return backward


def scatter_into_view(view: Callable[..., torch.Tensor]) -> Callable[..., Lane]:
    """A copy of a tensor with other values at the places of a view."""

    def scatter(build: Builder, given: Tensor, src: Tensor, **options: Any) -> Lane:
        whole = build.new(given.shape)
        build.compute(whole, "{0}", [given])
        build.compute(Lane(whole.buffer, view(whole.index, **options)), "{0}", [src])
        return whole

    return scatter


def index_put(build: Builder, given: Tensor, indices: list[Any], values: Tensor, accumulate: Any = 0) -> Lane:
    """A copy in which values are written, or added, at some places."""
    result = build.new(given.shape)
    build.compute(result, "{0}", [given])
    if any(isinstance(each, Lane) for each in indices):
        raise UnsupportedError("index_put with indices that depend on the setting")
    place = result.index[tuple(slice(None) if each is None else each for each in indices)]
    size = (place.numel(),)
    into = Read(result.buffer, build.tables.access(place.reshape(-1)))
    if isinstance(values, Lane):
        spread: Tensor = Lane(values.buffer, values.index.expand(place.shape).reshape(-1))
    else:
        spread = values.expand(place.shape).reshape(-1)
    operand = build.source(spread, size)
    added = Statement(into, "({0} + {1})", (into, operand))
    statement = added if accumulate else Statement(into, "{0}", (operand,))
    # In a loop of its own: an element may occur several times, and each addition must see the one before.
    build.schedule.compute(size[0], statement, alone=True)
    return result


COPIES: dict[str, Callable[..., Lane]] = {
    "cat": cat,
    "stack": stack,
    "constant_pad_nd": pad,
    "index_put": index_put,
    "slice_scatter": scatter_into_view(torch.ops.aten.slice.Tensor),
    "select_scatter": scatter_into_view(torch.ops.aten.select.int),
    "diagonal_scatter": scatter_into_view(torch.ops.aten.diagonal.default),
    "slice_backward": backward_of_view(torch.ops.aten.slice.Tensor),
    "select_backward": backward_of_view(torch.ops.aten.select.int),
    "diagonal_backward": backward_of_view(torch.ops.aten.diagonal.default),
}
"""Keys are the names of operations in torch. The first tensor is `given` if torch calls it self."""
