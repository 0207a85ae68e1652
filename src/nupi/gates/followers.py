"""Find the norm that follows each layer. It would make a closed channel nonzero again, so the gates must be in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nupi.gates.graph import UntraceableError, trace
from nupi.gates.harvesting.rules import POOLS, ZERO_TO_ZERO

if TYPE_CHECKING:
    from collections.abc import Mapping

NORMS = (
    _BatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.modules.instancenorm._InstanceNorm,
)
FUNCTIONAL_NORMS = {
    functional.batch_norm,
    functional.group_norm,
    functional.layer_norm,
    functional.rms_norm,
    functional.instance_norm,
}
KEEPING = ZERO_TO_ZERO | POOLS | {nn.Flatten, torch.flatten, "flatten", torch.cat, torch.concat}


def following_norms(
    model: nn.Module, names: list[str], norms: Mapping[str, str | None] | None
) -> dict[str, str]:
    """By layer, the name of the norm that takes its output, or None."""
    given, modules = dict(norms or {}), dict(model.named_modules(remove_duplicate=False))
    if strangers := [name for name in given if name not in names]:
        raise ValueError(f"norms has {strangers[0]!r}, which is not among the layers to gate: {names}")
    if missing := [norm for norm in given.values() if norm is not None and norm not in modules]:
        raise ValueError(f"norms has {missing[0]!r}, which names nothing in the model")
    followers = {name: norm for name, norm in given.items() if norm is not None}
    if open_questions := [name for name in names if name not in given]:
        try:
            graph = trace(model)
        except UntraceableError as error:
            raise ValueError(
                f"{error}. So nupi cannot find which norm follows which layer: pass "
                f"norms={{{open_questions[0]!r}: name of its norm, or None}} with each layer"
            ) from error
        for name in open_questions:
            if norm := _norm_after(model, graph, name):
                followers[name] = norm
    if doubled := [norm for norm in set(followers.values()) if list(followers.values()).count(norm) > 1]:
        raise ValueError(
            f"the norm {doubled[0]!r} follows more than one of the layers to gate; gate one of them"
        )
    return followers


def _norm_after(model: nn.Module, graph: fx.Graph, name: str) -> str | None:
    """The norm that takes this layer's output, and nothing else takes it; None without one."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if not calls:
        raise ValueError(f"names has {name!r}, which the model's forward never calls")
    users = [user for call in calls for user in call.users]
    found = {
        str(user.target) if user.op == "call_module" and is_norm(model, user) else None for user in users
    }
    if len(found) > 1:
        ways = " and ".join(sorted(each or "no norm" for each in found))
        raise ValueError(
            f"the output of {name!r} goes through {ways}: a gate in one of them would not close the channel in the "
            "others; gate a layer whose output goes to one place"
        )
    if found == {None} and (later := _norm_behind(model, users)):
        raise ValueError(
            f"{name!r} reaches the norm {later!r} through other layers, and it would make a closed channel nonzero; "
            f"say norms={{{name!r}: {later!r}}} to gate there, if it has the same channels, or {{{name!r}: None}} to "
            "gate the layer itself"
        )
    return found.pop() if found else None


def _norm_behind(model: nn.Module, nodes: list[fx.Node]) -> str | None:
    """The first norm that the output reaches through operations that map zero to zero."""
    for node in nodes:
        if is_norm(model, node):
            return str(node.target)
        if _keeps_zeros(model, node) and (found := _norm_behind(model, list(node.users))):
            return found
    return None


def _keeps_zeros(model: nn.Module, node: fx.Node) -> bool:
    """Whether a channel of zeros is still zero after this operation."""
    if node.op != "call_module":
        return node.target in KEEPING
    layer = model.get_submodule(str(node.target))
    depthwise = (
        isinstance(layer, nn.Conv1d | nn.Conv2d)
        and layer.groups == layer.in_channels > 1
        and layer.bias is None
    )
    return depthwise or type(layer) in KEEPING


def is_norm(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node calls any kind of norm."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), NORMS)
    return node.target in FUNCTIONAL_NORMS
