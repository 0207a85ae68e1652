"""Sizes that the forward pass reads. They are harmless unless one is the number of channels, which is followed."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from nupi.gates.harvesting.channels import Flow, Pieces
from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, argument
from nupi.gates.harvesting.rules.space import index

if TYPE_CHECKING:
    from torch import fx

    from nupi.gates.harvesting.flow import Walk

HARMLESS = ("dtype", "device", "ndim")


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
    """Brackets: an entry of a shape, or a part of a tensor."""
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


def _chunk(walk: Walk, node: fx.Node, _: Any) -> None:
    """Equal pieces, which stay equal if a channel stays or goes in all of them."""
    source = walk.source(node)
    if source is None:
        return
    count, dim = argument(node, 1, "chunks", None), argument(node, 2, "dim", 0)
    if not isinstance(count, int) or not isinstance(dim, int):
        raise NotCoveredError("its number of pieces and its dimension must be numbers")
    if dim % len(source.shape) != source.dim or len(source.numbers) % count:
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
    torch.chunk: _chunk,
    "chunk": _chunk,
}
