"""Operations that join tensors: sums, products, quotients and concatenations."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from nupi.gates.graph import shape_of
from nupi.gates.harvesting.channels import Flow
from nupi.gates.harvesting.conditions import ALWAYS
from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, argument, is_number, shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.gates.harvesting.flow import Walk

SUMS: set[Any] = {
    operator.add,
    operator.iadd,
    operator.sub,
    operator.isub,
    torch.add,
    torch.sub,
    "add",
    "sub",
}
PRODUCTS: set[Any] = {operator.mul, operator.imul, torch.mul, "mul"}
QUOTIENTS: set[Any] = {operator.truediv, operator.itruediv, torch.div, "div"}
CATS: set[Any] = {torch.cat, torch.concat}
UNLIKE = "both sides must have the same channels"
UNFOLLOWED = "is joined to a tensor whose channels cannot be followed"


def _sum(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    """A channel of a sum is alive if it is alive on one of the sides."""
    return _combined(walk, node, walk.channels.conditions.some)


def _product(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    """A channel of a product is alive if it is alive on both sides."""
    return _combined(walk, node, walk.channels.conditions.every)


def _quotient(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    """A channel of a quotient is alive where the numerator is, if the denominator is a number. 0 / 0 would be nan."""
    lower = argument(node, 1, "other", 0)
    over_number = lower != 0 if is_number(lower) else shape_of(lower) is None
    return _combined(walk, node, lambda upper, _: upper if over_number else torch.full_like(upper, ALWAYS))


def _expand_as(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    """A channel of `x.expand_as(y)` is alive where that of x is."""
    sides = (each for each in (*node.args, *node.kwargs.values()) if isinstance(each, fx.Node))
    first, second = (walk.flows.get(side) for side in sides)
    if first is None or second is None or not _alike(first, second):
        raise NotCoveredError(UNLIKE)
    walk.channels.unite(first.numbers, second.numbers)
    return first.but(shape(node))


def _combined(
    walk: Walk, node: fx.Node, alive: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Flow | None:
    """Unite the channels of both sides. `alive` computes the conditions of the result from those of the sides."""
    sides = node.args
    flows = [walk.flows[side] for side in sides if isinstance(side, fx.Node) and side in walk.flows]
    if not flows or len(sides) != 2:
        return None
    if len(flows) == 2 and _alike(*flows):
        walk.channels.unite(flows[0].numbers, flows[1].numbers)
        return flows[0].but(shape(node), alive(flows[0].alive, flows[1].alive))
    widest = max(flows, key=lambda flow: len(flow.numbers))
    others = [side for side in sides if not isinstance(side, fx.Node) or walk.flows.get(side) is not widest]
    if len(shape(node)) != len(widest.shape) or not all(_is_broadcast(walk, side, widest) for side in others):
        raise NotCoveredError(UNLIKE)
    return widest.but(shape(node), alive(widest.alive, torch.full_like(widest.alive, ALWAYS)))


def _alike(first: Flow, second: Flow) -> bool:
    return (first.dim, len(first.shape), len(first.numbers)) == (
        second.dim,
        len(second.shape),
        len(second.numbers),
    )


def _is_broadcast(walk: Walk, operand: Any, flow: Flow) -> bool:
    """Whether the operand is the same for all channels, so that it fits any number of them."""
    sizes = shape_of(operand) if isinstance(operand, fx.Node) else None
    if sizes is None:
        return True  # a number, and not the number of channels: the walk has checked that
    if operand in walk.flows and len(walk.flows[operand].numbers) > 1:
        return False
    behind = len(flow.shape) - flow.dim  # broadcasting aligns the last dimensions
    return len(sizes) < behind or sizes[-behind] == 1


def _cat(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    parts, dim = argument(node, 0, "tensors", ()), argument(node, 1, "dim", 0)
    if not isinstance(parts, tuple | list):
        raise NotCoveredError("its tensors must be listed one by one")
    known = [walk.flows[part] for part in parts if part in walk.flows]
    if not known:
        return None
    if any(dim not in (flow.dim, flow.dim - len(flow.shape)) for flow in known):
        raise NotCoveredError("it must join along the channels")
    whole = [walk.flows.get(part) or _kept(walk, part, known[0].dim) for part in parts]
    return Flow(
        torch.cat([flow.numbers for flow in whole]),
        torch.cat([flow.alive for flow in whole]),
        known[0].dim,
        shape(node),
    )


def _kept(walk: Walk, part: fx.Node, dim: int) -> Flow:
    """A tensor whose channels are not followed, so all of them stay."""
    sizes = shape(part)
    if len(sizes) <= dim:
        raise NotCoveredError("it must join along the channels")
    numbers = walk.channels.new(sizes[dim])
    walk.channels.keep(numbers, UNFOLLOWED)
    return Flow(numbers, torch.full_like(numbers, ALWAYS), dim, sizes)


JOINS: dict[Any, Rule] = {
    **dict.fromkeys(SUMS, _sum),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(QUOTIENTS, _quotient),
    **dict.fromkeys(CATS, _cat),
    "expand_as": _expand_as,
}
