"""Put gates on the layers of an existing model, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from nupi.gates.batch_norms import GatedBatchNorm1d, GatedBatchNorm2d
from nupi.gates.followers import NORMS, following_norms
from nupi.gates.graph import CONTAINERS, inside_wrapper
from nupi.gates.hard_concrete import STRETCH, TEMPERATURE, HardConcrete
from nupi.gates.layers import (
    IN_FRONT,
    PLACES,
    Gated,
    GatedConv1d,
    GatedConv2d,
    GatedLinear,
    Place,
    gates_of_layer,
)
from nupi.gates.norms import GATED_NORMS as OTHER_NORMS
from nupi.gates.norms import channels_of, gates_of

Unit: TypeAlias = Literal["channel", "weight"]
UNITS: tuple[Unit, ...] = get_args(Unit)
GATEABLE = (nn.Conv1d, nn.Conv2d, nn.Linear)
GATEABLE_NAMES = "Conv1d, Conv2d or Linear"
GATED_NORMS: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: GatedBatchNorm1d,
    nn.BatchNorm2d: GatedBatchNorm2d,
    **OTHER_NORMS,
}
GATED_LAYERS: dict[type[nn.Module], Any] = {
    nn.Conv1d: GatedConv1d,
    nn.Conv2d: GatedConv2d,
    nn.Linear: GatedLinear,
}


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
    """Put gates on layers of `model`, in place; returns their names. Their parameters stay the same objects.

    Args:
        model: any model. The gates' parameters are new: give them to an optimizer (`gate_parameters`).
        names: names or patterns of convolution and linear layers, as in `model.named_modules()`. In "layer*.conv1",
            `*` stands for any text, dots included.
        unit: a gate for each output channel (of a grouped convolution: for each group), or for each weight.
        place: the place of the gates if a batch norm follows the layer: "before" or "after" the norm.
        norms: layer name to the name of the batch norm that gets its gates, or to None to keep them in the layer.
            By default found by tracing. Needed for models that `torch.fx` cannot trace, and if something is between a
            layer and its norm.
        droprate_init: as for `HardConcrete`.
        temperature: as for `HardConcrete`.
        stretch: as for `HardConcrete`.
        clamp: as for `HardConcrete`.

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
    if not isinstance(names, str | Iterable) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"names={names!r} must be the name of a layer, or several: 'layer*.conv1'")
    if norms is not None and not isinstance(norms, Mapping):
        raise TypeError(
            f"norms={norms!r} must map the names of layers to those of norms: {{'conv1': 'norm1'}}"
        )
    if norms and unit == "weight":
        raise ValueError("norms goes with unit='channel' only: gates on weights stay in their layer")
    chosen = _choose(model, [names] if isinstance(names, str) else list(names))
    followers = {} if unit == "weight" else following_norms(model, list(chosen), norms)
    made: dict[nn.Module, Gated] = {}
    for name, layer in chosen.items():
        shape: Any = layer.weight.shape if unit == "weight" else gates_of_layer(layer)
        if follower := followers.get(name):
            shape = _gates_in_norm(model, name, follower)
        gate = HardConcrete(
            shape, droprate_init=droprate_init, temperature=temperature, stretch=stretch, clamp=clamp
        ).to(layer.weight.device)
        if follower:
            made[model.get_submodule(follower)] = _gated_norm(model, name, follower, gate, place)
        else:
            made[layer] = GATED_LAYERS[_kind(layer)](layer, gate)
    # Replaced last, so that an error above leaves the model as it was. A layer may have several names.
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, made[module])
    return list(chosen)


def _choose(model: nn.Module, patterns: list[str]) -> dict[str, nn.Conv1d | nn.Conv2d | nn.Linear]:
    """The layers that the patterns name, each once, in the model's order."""
    if not patterns:
        raise ValueError(f"names is empty: name at least one {GATEABLE_NAMES} of the model")
    if inside := inside_wrapper(model):
        raise ValueError(f"model is a {type(model).__name__}: gate model.{inside} before it is wrapped")
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in patterns:
        matches = [name for name in modules if fnmatchcase(name, pattern)]
        if not any(isinstance(modules[name], GATEABLE) for name in matches):
            known = [name for name, module in modules.items() if isinstance(module, GATEABLE)]
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0)
            what = f"names a {type(modules[matches[0]]).__name__}" if matches else "names nothing"
            advice = f"such as {', '.join(near)}" if near else "and the model has none"
            raise ValueError(
                f"names has {pattern!r}, which {what} in the model; it must name a {GATEABLE_NAMES}, {advice}"
            )
    gated = {module.layer: name for name, module in modules.items() if isinstance(module, Gated)}
    owners = {layer.weight: name for layer, name in gated.items() if isinstance(layer, GATEABLE)}
    chosen: dict[str, nn.Conv1d | nn.Conv2d | nn.Linear] = {}
    asked = {module for name, module in modules.items() if any(fnmatchcase(name, each) for each in patterns)}
    for name, module in model.named_modules():  # a layer with several names: the first counts
        if isinstance(module, GATEABLE) and module in asked:
            if not name:
                raise ValueError(
                    "model is itself the layer to gate: use GatedConv1d, GatedConv2d or GatedLinear"
                )
            if module in gated:
                raise ValueError(f"names has {name!r}, which is gated already")
            if (other := owners.setdefault(module.weight, name)) != name:
                raise ValueError(
                    f"names has {name!r}, which shares its weight with {other!r}: the same parameters would be "
                    "counted twice; gate one of the two"
                )
            _refuse_inside_torch(modules, name)
            chosen[name] = module
    return chosen


def _refuse_inside_torch(modules: Mapping[str, nn.Module], name: str) -> None:
    """Refuse a layer of a torch block such as TransformerEncoderLayer, which reads weights without calling layers."""
    parts = name.split(".")
    for outer in (".".join(parts[:i]) for i in range(1, len(parts))):
        block = modules[outer]
        if type(block).__module__.startswith("torch.nn") and not isinstance(block, CONTAINERS):
            raise ValueError(
                f"names has {name!r}, which is part of {outer!r}, a {type(block).__name__}: torch's code for it reads "
                "the weights without the gate; write the block with your own layers"
            )


def _kind(layer: nn.Module) -> type[nn.Module]:
    return next(kind for kind in GATEABLE if isinstance(layer, kind))


def _gates_in_norm(model: nn.Module, name: str, follower: str) -> int:
    """How many gates the norm of a layer needs; refuses a norm that cannot have the layer's gates."""
    layer, norm = model.get_submodule(name), model.get_submodule(follower)
    assert isinstance(layer, GATEABLE)
    if isinstance(norm, Gated):
        raise ValueError(  # noqa: TRY004
            f"{name!r} is followed by {follower!r}, which already has the gates of another layer"
        )
    if not isinstance(norm, NORMS):
        raise ValueError(  # noqa: TRY004
            f"norms has {follower!r} for {name!r}, a {type(norm).__name__}: name the norm that follows the layer, "
            "or None"
        )
    if type(norm) not in GATED_NORMS:
        advice = (
            "give it BatchNorm1d or BatchNorm2d, whose statistics are those of each process"
            if isinstance(norm, nn.SyncBatchNorm)
            else "gated forms have " + ", ".join(sorted(each.__name__ for each in GATED_NORMS))
        )
        raise ValueError(
            f"{name!r} is followed by {follower!r}, a {type(norm).__name__}, which would make a closed channel "
            f"nonzero again, and which has no gated form; {advice}"
        )
    if (channels := channels_of(norm)) != len(layer.weight):
        raise ValueError(
            f"{follower!r} has {channels} channels, but {name!r} has {len(layer.weight)}: it is not the norm of this "
            "layer's output"
        )
    per_channel = isinstance(norm, nn.modules.batchnorm._BatchNorm)
    return gates_of_layer(layer) if per_channel else gates_of(norm)


def _gated_norm(model: nn.Module, name: str, follower: str, gate: HardConcrete, place: Place) -> Gated:
    layer, norm = model.get_submodule(name), model.get_submodule(follower)
    assert isinstance(layer, GATEABLE)
    per_channel = layer.weight[0].numel() + (layer.bias is not None)
    per_gate = per_channel * (len(layer.weight) // len(gate.log_alpha))
    gated: Gated = GATED_NORMS[type(norm)](norm, gate, place=place, parameters_per_gate=per_gate)
    gated.__dict__[IN_FRONT] = layer
    return gated
