"""What the rules share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from nupi.gates.graph import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import fx

    from nupi.gates.harvesting.channels import Flow
    from nupi.gates.harvesting.flow import Walk

Rule: TypeAlias = "Callable[[Walk, fx.Node, Any], Flow | None]"


class NotCoveredError(Exception):
    """This use of a known layer or operation is not covered."""


def of_followed(rule: Callable[[Walk, fx.Node, Any, Flow], Flow | None]) -> Rule:
    """A rule about the channels that come in, which also gets these; where they are not followed it says nothing."""

    @functools.wraps(rule)
    def about_source(walk: Walk, node: fx.Node, module: Any) -> Flow | None:
        source = walk.source(node)
        return None if source is None else rule(walk, node, module, source)

    return about_source


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """What the node's call has for an argument."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def arguments(node: fx.Node, name: str) -> tuple[Any, ...]:
    """What the call has for an argument that may be one tuple or be spread out, as sizes and dimensions may."""
    first = argument(node, 1, name, ())
    return tuple(first) if isinstance(first, tuple | list) else (first, *node.args[2:])


def shape(node: fx.Node) -> torch.Size:
    """The shape of the tensor that a node gives."""
    found = shape_of(node)
    assert found is not None  # the walk asks no rule about what is not a tensor
    return found


def is_number(value: object) -> bool:
    """Whether a value is written into the model as a number."""
    return isinstance(value, int | float)
