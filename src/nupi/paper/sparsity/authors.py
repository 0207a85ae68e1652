"""What the authors' training does beyond a plain one: options of an `Experiment`, all in use at paper scale.

| option | theirs | plain |
| --- | --- | --- |
| `start` | convolutions start normal with variance 2 / fan out | torch's own start |
| `divide` | gated weights are divided by 1 - droprate_init at the start | they are not |
| `decay` | the decay of a gated channel is times its probability of being active (detached) | plain decay |
| `cosine` | the weights' step size changes once an epoch | once a step |
| `accuracy` | training accuracy is the last epoch's average, in training mode | of all images, median gates |
| `trained` | "gated": gated convolutions and batch norms; the other weights stay as drawn | "all" |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nupi import gates

if TYPE_CHECKING:
    from collections.abc import Iterator

Start: TypeAlias = Literal["torch", "fan out"]
Decay: TypeAlias = Literal["plain", "active"]
Cosine: TypeAlias = Literal["step", "epoch"]
Accuracy: TypeAlias = Literal["evaluated", "averaged"]
Weights: TypeAlias = Literal["all", "gated"]


def start_by_fan_out(model: nn.Module) -> None:
    """Draw every convolution's weights anew: w ~ N(0, 2 / fan out)."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def divide_gated_weights(model: nn.Module, droprate_init: float) -> None:
    """W / (1 - droprate_init) for the weights that gates switch."""
    with torch.no_grad():
        for weight, _ in gated_weights(model):
            weight.div_(1 - droprate_init)


def gated_weights(model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Module]]:
    """The weight of every gated convolution, and its gate."""
    for gated in gates.gated_layers(model).values():
        yield cast("nn.Parameter", gated.layer.weight), gated.gate


def trained_weights(model: nn.Module, which: Weights) -> list[nn.Parameter]:
    """The weights that are trained; the others are left as they are, and need no gradient."""
    if which == "all":
        return list(gates.weight_parameters(model))
    kept = {id(weight) for weight, _ in gated_weights(model)}
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            kept |= {id(layer.weight), id(layer.bias)}
    for weight in gates.weight_parameters(model):
        weight.requires_grad_(id(weight) in kept)
    return [weight for weight in gates.weight_parameters(model) if weight.requires_grad]


@torch.no_grad()
def add_active_decay(model: nn.Module, weight_decay: float) -> None:
    """Add the decay of gated weights to their gradients: weight_decay P(channel active) w."""
    for weight, gate in gated_weights(model):
        if weight.grad is not None:
            active = cast("torch.Tensor", gate.probability())  # type: ignore[operator]
            weight.grad.addcmul_(weight, active.to(weight.dtype).view(-1, 1, 1, 1), value=weight_decay)
