"""Sizes that the forward pass reads, such as `x.size(1)`: numbers of channels are followed, others cannot change."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from nupi.gates.harvesting.channels import Flow, Pieces, Portion
from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, argument, of_followed
from nupi.gates.harvesting.rules.space import index

if TYPE_CHECKING:
    from nupi.gates.harvesting.flow import Walk

HARMLESS = ("dtype", "device", "ndim")
SPLITS: set[Any] = {torch.split, "split"}


def _size(walk: Walk, node: fx.Node, _: Any) -> None:
    source = walk.source(node)
    if source is None or node.target == "dim":
        return
    if node.target is getattr and node.args[1] in HARMLESS:
        return
    if node.target is getattr and node.args[1] != "shape":
        raise NotCoveredError(f"it reads {node.args[1]!r}")
    whole = tuple(source if dim == source.dim else None for dim in range(len(source.shape)))
    asked = argument(node, 1, "dim", None) if node.target == "size" else None
    _note(walk, node, whole, slice(None) if asked is None else asked)


def _item(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    """`x[...]`: an entry of a shape, a piece of a split, or a part of a tensor."""
    whole = walk.sizes.get(walk.first(node))
    if isinstance(whole, Pieces):
        if not isinstance(node.args[1], int):
            raise NotCoveredError("which piece it takes is not known")
        return whole[node.args[1]]
    if not isinstance(whole, tuple):
        return index(walk, node, None)
    _note(walk, node, whole, node.args[1])
    return None


def _note(walk: Walk, node: fx.Node, whole: tuple[Flow | None, ...], asked: Any) -> None:
    bounds = (asked.start, asked.stop, asked.step) if isinstance(asked, slice) else (asked,)
    if any(not isinstance(bound, int) and (bound is not None or asked is None) for bound in bounds):
        raise NotCoveredError("which size it reads is not known")
    part = whole[asked]
    if isinstance(part, Flow) or (isinstance(part, tuple) and any(part)):
        walk.sizes[node] = part


def _divided(walk: Walk, node: fx.Node, _: Any) -> None:
    """A size divided by a number, as in y.split(y.size(1) // 2, 1)."""
    whole, count = walk.sizes.get(walk.first(node)), argument(node, 1, "other", None)
    if whole is None and walk.first(node) not in walk.flows:
        return
    if not isinstance(whole, Flow) or type(count) is not int or count < 1:
        raise NotCoveredError("only a size may be divided, and only by a number")
    walk.sizes[node] = Portion((whole,) * count)


@of_followed
def _chunk(walk: Walk, node: fx.Node, _: Any, source: Flow) -> None:
    count, dim = argument(node, 1, "chunks", None), argument(node, 2, "dim", 0)
    if type(count) is not int or not isinstance(dim, int):
        raise NotCoveredError("its number of pieces and its dimension must be numbers")
    if dim % len(source.shape) == source.dim:
        _cut_channels(walk, node, source, count)
    else:
        _cut_elsewhere(walk, node, source, torch.empty(source.shape, device="meta").chunk(count, dim))


@of_followed
def _split(walk: Walk, node: fx.Node, _: Any, source: Flow) -> None:
    name = "split_size" if node.op == "call_method" else "split_size_or_sections"
    size, dim = argument(node, 1, name, None), argument(node, 2, "dim", 0)
    portion = walk.sizes.get(size) if isinstance(size, fx.Node) else None
    if not isinstance(dim, int):
        raise NotCoveredError("its dimension must be a number")
    if dim % len(source.shape) != source.dim:
        if isinstance(size, fx.Node) or not all(type(each) is int for each in _listed(size)):
            raise NotCoveredError("its sizes must be numbers")
        _cut_elsewhere(walk, node, source, torch.empty(source.shape, device="meta").split(size, dim))
    elif isinstance(portion, Portion) and len(portion[0].numbers) == len(source.numbers):
        walk.channels.unite(source.numbers, portion[0].numbers)
        _cut_channels(walk, node, source, len(portion))
    else:
        raise NotCoveredError(
            "its sizes are fixed, so fewer channels do not fit; use chunk(2, 1), or split(y.size(1) // 2, 1)"
        )


def _listed(size: Any) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (size,)


def _cut_elsewhere(walk: Walk, node: fx.Node, source: Flow, pieces: tuple[torch.Tensor, ...]) -> None:
    """Pieces along another dimension: each has all channels."""
    walk.sizes[node] = Pieces(source.but(piece.shape) for piece in pieces)


def _cut_channels(walk: Walk, node: fx.Node, source: Flow, count: int) -> None:
    """Equal pieces of the channels. They stay equal if the same channels go in all of them."""
    if len(source.numbers) % count:
        raise NotCoveredError("it must cut the channels into equal pieces")
    numbers, alive = source.numbers.view(count, -1), source.alive.view(count, -1)
    for piece in numbers[1:]:
        walk.channels.unite(numbers[0], piece)
    sizes = list(source.shape)
    sizes[source.dim] //= count
    walk.sizes[node] = Pieces(
        Flow(piece, when, source.dim, torch.Size(sizes)) for piece, when in zip(numbers, alive, strict=True)
    )


SIZES: dict[Any, Rule] = {
    "size": _size,
    getattr: _size,
    "dim": _size,
    operator.getitem: _item,
    operator.floordiv: _divided,
    torch.chunk: _chunk,
    "chunk": _chunk,
    **dict.fromkeys(SPLITS, _split),
}
