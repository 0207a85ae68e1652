"""Helpers of all rules: the error, and how to read a node's arguments and shape."""

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
    """A rule exists for this layer or operation, but not for this way of using it."""


def of_followed(rule: Callable[[Walk, fx.Node, Any, Flow], Flow | None]) -> Rule:
    """Make a rule of a function that also gets the input channels. It is not called if these are not followed."""

    @functools.wraps(rule)
    def about_source(walk: Walk, node: fx.Node, module: Any) -> Flow | None:
        source = walk.source(node)
        return None if source is None else rule(walk, node, module, source)

    return about_source


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """One argument of the node's call, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def arguments(node: fx.Node, name: str) -> tuple[Any, ...]:
    """One argument of the call that may be a tuple or several arguments: view((2, 3)) or view(2, 3)."""
    first = argument(node, 1, name, ())
    return tuple(first) if isinstance(first, tuple | list) else (first, *node.args[2:])


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's output."""
    found = shape_of(node)
    assert found is not None  # the walk calls rules only for tensors
    return found


def is_number(value: object) -> bool:
    """Whether a value is a constant number in the model's code."""
    return isinstance(value, int | float)
