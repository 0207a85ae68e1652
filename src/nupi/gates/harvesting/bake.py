"""Turn gated layers into plain ones: multiply the median gates into the weights and remove the gates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nupi.gates.batch_norms import GatedBatchNorm1d, GatedBatchNorm2d
from nupi.gates.harvesting.checks import HarvestError
from nupi.gates.layers import (
    IN_FRONT,
    Gated,
    GatedConv1d,
    GatedConv2d,
    GatedLinear,
    gated_weight,
    spread,
)
from nupi.gates.norms import GATED_NORMS, OVER_OPEN, GatedNorm, channels_of
from nupi.gates.transformer.layers import GatedInput

PLAIN: dict[type[Gated], type[nn.Module]] = {
    GatedConv1d: nn.Conv1d,
    GatedConv2d: nn.Conv2d,
    GatedLinear: nn.Linear,
    GatedBatchNorm1d: nn.BatchNorm1d,
    GatedBatchNorm2d: nn.BatchNorm2d,
    **{gated: plain for plain, gated in GATED_NORMS.items()},
}


@torch.no_grad()
def bake(model: nn.Module) -> None:
    """Replace every gated layer of `model`, in place, by a plain one that does the same in evaluation mode."""
    baked: dict[Gated, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, Gated):
            if module not in baked:
                baked[module] = _plain(module)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, baked[module])


def _plain(layer: Gated) -> nn.Module:
    z = layer.gate.eval().median()
    if isinstance(layer, GatedConv1d | GatedConv2d | GatedLinear):
        weight, bias = gated_weight(z, layer.weight, layer.bias)
        return _as_plain(layer, weight=weight, bias=bias)
    if isinstance(layer, GatedInput):
        return _as_plain(layer, weight=layer.gated_weight(z))
    if isinstance(layer, GatedBatchNorm1d | GatedBatchNorm2d):
        return _as_plain(layer, **_gated_norm(layer, z))
    if isinstance(layer, GatedNorm):
        return _plain_norm(layer, z)
    raise HarvestError(f"no plain form is known for a {type(layer).__name__}")


def _gated_norm(
    layer: GatedBatchNorm1d | GatedBatchNorm2d, z: torch.Tensor
) -> dict[str, torch.Tensor | None]:
    """The weight, bias and running mean of a batch norm that includes its gates z.

    w, b, m, v are the weight, bias, mean and variance of the norm. With place "after", z (w (x - m) / sqrt(v) + b):
    w and b are multiplied by z. With "before", w (z x - m) / sqrt(v) + b = w z (x - m / z) / sqrt(v) + b where
    z > 0, and 0 elsewhere.
    """
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise HarvestError(
            "a norm without running statistics computes them from each batch, so a gate cannot become part of its "
            "weights; build it with track_running_stats=True"
        )
    z = spread(z, len(variance)).to(variance.dtype)
    weight = torch.ones_like(variance) if layer.weight is None else layer.weight
    bias = torch.zeros_like(variance) if layer.bias is None else layer.bias
    if layer.place == "after":
        return {"weight": weight * z, "bias": bias * z, "running_mean": mean}
    is_open = z > 0
    return {
        "weight": weight * z,
        "bias": bias * is_open,
        "running_mean": torch.where(is_open, mean / torch.where(is_open, z, 1.0), 0.0),
    }


def _plain_norm(layer: GatedNorm, z: torch.Tensor) -> nn.Module:
    """A plain layer, RMS or group norm whose weight and bias include the gates.

    Its outputs are right only after its closed channels have been removed.
    """
    if layer.place == "before":
        raise HarvestError(
            f"the gates in front of a {PLAIN[type(layer)].__name__} scale its input, which cannot become part of its "
            "weights; attach them with place='after'"
        )
    channels = channels_of(layer)
    z = spread(z, channels)
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    scale = z.to(weight.dtype if weight is not None else torch.get_default_dtype())
    tensors = {"weight": scale if weight is None else weight * scale}
    if "bias" in layer._parameters:
        tensors["bias"] = torch.zeros_like(scale) if bias is None else bias * scale
    plain = _as_plain(layer, **tensors)
    if isinstance(layer, nn.GroupNorm):
        plain.__dict__["affine"] = True
    else:
        plain.__dict__["elementwise_affine"] = True
        plain.__dict__[OVER_OPEN] = True
    return plain


def _as_plain(layer: Gated, **tensors: torch.Tensor | None) -> nn.Module:
    """A plain layer with these parameters and buffers, and all other attributes of `layer`."""
    # A layer with gates on its inputs inherits from GatedInput first and from the plain class second.
    plain_type: Any = type(layer).__bases__[1] if isinstance(layer, GatedInput) else PLAIN[type(layer)]
    plain: nn.Module = plain_type.__new__(plain_type)
    plain.__dict__.update(layer.__dict__)
    for own in ("_parameters", "_buffers", "_modules"):
        plain.__dict__[own] = layer.__dict__[own].copy()
    for extra in ("parameters_per_gate", IN_FRONT, "place", "size"):
        plain.__dict__.pop(extra, None)
    del plain._modules["gate"]
    plain._buffers.pop("open_batches", None)
    for name, tensor in tensors.items():
        if name in plain._buffers:
            plain._buffers[name] = tensor
        else:
            old = plain._parameters.get(name)
            trained = old is None or old.requires_grad
            plain._parameters[name] = None if tensor is None else nn.Parameter(tensor.clone(), trained)
    if isinstance(plain, nn.BatchNorm1d | nn.BatchNorm2d):
        plain.affine = True
    return plain
