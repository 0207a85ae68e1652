"""Put gates on the layers of an existing model, by their names."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nupi.gates.graph import UntraceableError, trace
from nupi.gates.hard_concrete import STRETCH, TEMPERATURE, HardConcrete
from nupi.gates.harvesting.rules import POOLS, ZERO_TO_ZERO
from nupi.gates.layers import (
    PLACES,
    Gated,
    GatedBatchNorm1d,
    GatedBatchNorm2d,
    GatedConv2d,
    GatedLinear,
    Place,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Unit: TypeAlias = Literal["channel", "weight"]
UNITS: tuple[Unit, ...] = get_args(Unit)
GATEABLE = (nn.Conv2d, nn.Linear)
GATED_NORMS: dict[type[nn.Module], type[GatedBatchNorm1d | GatedBatchNorm2d]] = {
    nn.BatchNorm1d: GatedBatchNorm1d,
    nn.BatchNorm2d: GatedBatchNorm2d,
}
NORMS = (
    _BatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def attach(
    model: nn.Module,
    names: str | Iterable[str],
    *,
    unit: Unit = "channel",
    place: Place = "after",
    norms: Mapping[str, str | None] | None = None,
    droprate_init: float = 0.01,
    temperature: float = TEMPERATURE,
    stretch: tuple[float, float] = STRETCH,
    clamp: float | None = None,
) -> list[str]:
    """Gate layers of `model` in place, and say which. Their parameters stay the same objects.

    Args:
        model: any model. The gates' parameters are new: give them to an optimizer (`gate_parameters`).
        names: names or patterns of convolution and linear layers, as `model.named_modules()` has them; `*`
            stands for anything, dots too: "layer*.conv1".
        unit: a gate for each output channel, or for each weight.
        place: where the gates of channels sit when a batch norm follows the layer: "before" or "after" it.
        norms: layer name to the name of the batch norm that its gates go into, or to None where they stay in the
            layer. Found by tracing unless given; needed for models that `torch.fx` cannot trace, and where
            something stands between a layer and its norm.
        droprate_init: as for `HardConcrete`, and so are `temperature`, `stretch` and `clamp`.
        temperature: of the gates.
        stretch: of the gates.
        clamp: of the gates.

    Returns:
        The names of the layers that were gated, in the model's order.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> attach(model, "0"), type(model[1]).__name__
        (['0'], 'GatedBatchNorm2d')
    """
    for argument, value, known in (("unit", unit, UNITS), ("place", place, PLACES)):
        if value not in known:
            raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, known))}")
    chosen = _choose(model, [names] if isinstance(names, str) else list(names))
    followers = {} if unit == "weight" else _following_norms(model, list(chosen), norms)
    made: dict[nn.Module, Gated] = {}
    for name, layer in chosen.items():
        shape = layer.weight.shape if unit == "weight" else layer.weight.shape[:1]
        gate = HardConcrete(
            shape, droprate_init=droprate_init, temperature=temperature, stretch=stretch, clamp=clamp
        ).to(layer.weight.device)
        if follower := followers.get(name):
            made[model.get_submodule(follower)] = _gated_norm(model, name, follower, gate, place)
        elif isinstance(layer, nn.Conv2d):
            made[layer] = GatedConv2d(layer, gate)
        else:
            made[layer] = GatedLinear(layer, gate)
    # Only now, so that an error above leaves the model as it was; a layer may be known by more names than one.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, made[module])
    return list(chosen)


def _choose(model: nn.Module, patterns: list[str]) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers that the patterns name, each once, in the model's order."""
    if not patterns:
        raise ValueError("names is empty: name at least one Conv2d or Linear of the model")
    modules = dict(model.named_modules())
    for pattern in patterns:
        matches = [name for name in modules if fnmatchcase(name, pattern)]
        if not any(isinstance(modules[name], GATEABLE) for name in matches):
            known = [name for name, module in modules.items() if isinstance(module, GATEABLE)]
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0) or ["none"]
            what = f"names a {type(modules[matches[0]]).__name__}" if matches else "names nothing"
            raise ValueError(
                f"names has {pattern!r}, which {what} in the model; it must name a Conv2d or Linear, "
                f"such as {', '.join(near)}"
            )
    gated_from_elsewhere = {module.gates_layer for module in modules.values() if isinstance(module, Gated)}
    chosen: dict[str, nn.Conv2d | nn.Linear] = {}
    for name, module in modules.items():
        if isinstance(module, GATEABLE) and any(fnmatchcase(name, pattern) for pattern in patterns):
            if not name:
                raise ValueError("model is itself the layer to gate: use GatedConv2d or GatedLinear")
            if isinstance(module, Gated) or name in gated_from_elsewhere:
                raise ValueError(f"names has {name!r}, which is gated already")
            chosen[name] = module
    return chosen


def _gated_norm(model: nn.Module, name: str, follower: str, gate: HardConcrete, place: Place) -> Gated:
    layer, norm = model.get_submodule(name), model.get_submodule(follower)
    assert isinstance(layer, GATEABLE)
    if isinstance(norm, Gated):
        raise ValueError(f"{name!r} is followed by {follower!r}, which gates {norm.gates_layer!r} already")  # noqa: TRY004
    if not isinstance(norm, _BatchNorm) or type(norm) not in GATED_NORMS:
        raise ValueError(
            f"{name!r} is followed by {follower!r}, a {type(norm).__name__}, which would light a closed channel up "
            "again; only BatchNorm1d and BatchNorm2d have a gated form"
        )
    per_gate = layer.weight[0].numel() + (layer.bias is not None)
    gated = GATED_NORMS[type(norm)](norm, gate, place=place, parameters_per_gate=per_gate)
    gated.gates_layer = name
    return gated


def _following_norms(
    model: nn.Module, names: list[str], norms: Mapping[str, str | None] | None
) -> dict[str, str]:
    """The norm that takes the output of each named layer, where one does."""
    given, modules = dict(norms or {}), dict(model.named_modules())
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
                f"{error}. So which norm follows which layer cannot be seen: say it with "
                f"norms={{{open_questions[0]!r}: name of its batch norm, or None}} for each layer"
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
    """The norm that takes this layer's output and nothing else, if one does."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if not calls:
        raise ValueError(f"names has {name!r}, which the model's forward never calls")
    users = [user for call in calls for user in call.users]
    found = {str(user.target) if _is_norm(model, user) else None for user in users}
    if len(found) > 1:
        raise ValueError(
            f"the output of {name!r} goes through {sorted(map(str, found))}: a gate in one of them would not "
            "close the channel in the others; gate a layer with one follower"
        )
    if found == {None} and (later := _norm_behind(model, users)):
        raise ValueError(
            f"{name!r} reaches the norm {later!r} through other layers, and it would light a closed channel up again; "
            f"say norms={{{name!r}: {later!r}}} to gate there, or {{{name!r}: None}} to gate the layer all the same"
        )
    return found.pop() if found else None


def _norm_behind(model: nn.Module, nodes: list[fx.Node]) -> str | None:
    """The first norm behind activations and pooling, which leave a closed channel closed."""
    for node in nodes:
        kind = type(model.get_submodule(str(node.target))) if node.op == "call_module" else node.target
        if _is_norm(model, node):
            return str(node.target)
        if kind in ZERO_TO_ZERO | POOLS and (found := _norm_behind(model, list(node.users))):
            return found
    return None


def _is_norm(model: nn.Module, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), NORMS)
