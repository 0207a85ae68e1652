"""Convolution and linear layers with hard-concrete gates on their outputs or on their weights.

The shape of the gate says what it gates: each output channel, each group of them, or each weight. If a norm follows
the layer, the gates of its channels are in the norm; `nupi.gates.batch_norms` says why.

A gated layer is made from a plain one and keeps its parameters, buffers, hooks and mode. So an optimizer that already
has the parameters still has them, and their names in a state_dict stay.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from nupi.gates.hard_concrete import HardConcrete  # noqa: TC001 - the examples below use it

IN_FRONT = "_layer_in_front"  # of a gated norm: not a submodule, else the layer would be in the model twice
Place: TypeAlias = Literal["before", "after"]
PLACES: tuple[Place, ...] = get_args(Place)


class Gated(nn.Module):
    """Base class of all gated layers.

    Attributes:
        gate: the gates.
        parameters_per_gate: how many parameters of the network one gate switches.

    With z the gates and n = `parameters_per_gate`, the number of active parameters is

        expected    n * sum of P(z > 0)
        realised    n * (how many medians of z are above 0)

    Example:
        >>> layer = GatedLinear(nn.Linear(8, 4), HardConcrete(4))  # each gate has 8 weights and a bias
        >>> with torch.no_grad():
        ...     _ = layer.gate.log_alpha.copy_(torch.tensor([9.0, 9.0, -9.0, -9.0]))
        >>> layer.gated_parameters(), layer.realised_parameters().item()
        (36, 18)
        >>> round(layer.expected_parameters().item(), 2)
        18.01
    """

    gate: HardConcrete
    parameters_per_gate: int

    @property
    def layer(self) -> nn.Module:
        """The layer whose parameters the gates switch: this one, or the one in front of a gated norm."""
        layer: nn.Module = self.__dict__.get(IN_FRONT, self)
        return layer

    def expected_parameters(self) -> torch.Tensor:
        """The expected number of parameters that are active; differentiable."""
        return self.gate.expected_l0() * self.parameters_per_gate

    def realised_parameters(self) -> torch.Tensor:
        """The number of parameters that the median gate leaves active at test time."""
        return self.gate.is_open().sum() * self.parameters_per_gate

    def gated_parameters(self) -> int:
        """The number of parameters that the gates switch."""
        return self.gate.log_alpha.numel() * self.parameters_per_gate

    def all_parameters(self) -> int:
        """The number of parameters of the layer, gated or not."""
        return sum(each.numel() for each in self.parameters(recurse=False))

    def _take_over(self, plain: nn.Module, gate: HardConcrete) -> None:
        if isinstance(plain, Gated):
            raise TypeError(f"a {type(plain).__name__} is gated already; gate the plain layer instead")
        if type(plain) not in type(self).__mro__:
            raise TypeError(
                f"a {type(self).__name__} is made from torch's own layer, and would lose what a "
                f"{type(plain).__name__} does differently; gate another layer"
            )
        if "forward" in plain.__dict__:
            raise TypeError(
                f"this {type(plain).__name__} has a forward of its own, put on it by a wrapper, which would not use "
                "the gate; gate the model before it is wrapped"
            )
        if "weight" not in plain._parameters:
            raise TypeError(
                f"the weight of this {type(plain).__name__} is no parameter: it is computed from others (weight_norm, "
                "spectral_norm or prune); remove that first"
            )
        self.__dict__.update(plain.__dict__)
        self.__dict__.pop("_compiled_call_impl", None)  # of the plain layer: it does not use the gate
        for own in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[own] = plain.__dict__[own].copy()
        self.gate = gate.train(plain.training)


class _GatedConvolution(Gated, _ConvNd):
    """Base class of the gated convolutions."""

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, gate: HardConcrete) -> None:
        self._take_over(conv, gate)
        self.parameters_per_gate = _parameters_per_gate(conv, gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Apply the convolution with its gated weight."""
        return self._conv_forward(input, *gated_weight(self.gate(), self.weight, self.bias))


class GatedConv1d(_GatedConvolution, nn.Conv1d):
    """A one-dimensional convolution with gates; equation and arguments as for `GatedConv2d`.

    Example:
        >>> layer = GatedConv1d(nn.Conv1d(4, 8, 3), HardConcrete(8)).eval()
        >>> with torch.no_grad():
        ...     _ = layer.gate.log_alpha[2:].fill_(-5.0)  # close all channels but two
        >>> layer(torch.randn(1, 4, 16)).abs().amax(2) > 0
        tensor([[ True,  True, False, False, False, False, False, False]])
    """


class GatedConv2d(_GatedConvolution, nn.Conv2d):
    """A convolution with gates on its output channels or on its weights.

    With z the gates, y = z (W * x + b) for gates on channels, and y = (z W) * x + b for gates on weights.

    Args:
        conv: the plain layer; the new one uses its parameters.
        gate: gates of shape (out_channels,), (groups,) or the weight's shape. A channel's gate also gates its bias;
            gates on single weights do not.

    Example:
        >>> layer = GatedConv2d(nn.Conv2d(3, 8, 3), HardConcrete(8))
        >>> layer.gated_parameters()  # 8 channels of 3 * 3 * 3 weights and a bias
        224
    """


class GatedLinear(Gated, nn.Linear):
    """A linear layer with gates on its output features or on its weights; arguments as for `GatedConv2d`.

    With z the gates, y = z (W x + b) for gates on features, and y = (z W) x + b for gates on weights.

    Example:
        >>> layer = GatedLinear(nn.Linear(784, 300), HardConcrete((300, 784)))
        >>> layer.gated_parameters()  # one gate per weight, none on the biases
        235200
    """

    def __init__(self, linear: nn.Linear, gate: HardConcrete) -> None:
        self._take_over(linear, gate)
        self.parameters_per_gate = _parameters_per_gate(linear, gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Apply the linear map with its gated weight."""
        return functional.linear(input, *gated_weight(self.gate(), self.weight, self.bias))


def is_conv1d(layer: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer `Conv1D`, whose weight is transposed; checked by its attributes."""
    sizes = (getattr(layer, "nx", None), getattr(layer, "nf", None))
    weight = getattr(layer, "weight", None)
    return weight is not None and tuple(weight.shape) == sizes


def gated_weight(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and the bias, multiplied by the gates."""
    z = z.to(weight.dtype)
    if z.shape == weight.shape:
        return weight * z, bias
    z = spread(z, len(weight))
    return weight * z.view(-1, *[1] * (weight.dim() - 1)), None if bias is None else bias * z


def spread(z: torch.Tensor, channels: int) -> torch.Tensor:
    """Repeat each gate for its consecutive channels: one value per channel."""
    return z if len(z) == channels else z.repeat_interleave(channels // len(z))


def gates_of_layer(layer: nn.Module) -> int:
    """How many gates a layer's outputs need: one per channel, or one per group, which is removed as a whole."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    groups: int = getattr(layer, "groups", 1)
    return groups if groups > 1 else len(weight)


def _parameters_per_gate(layer: nn.Conv1d | nn.Conv2d | nn.Linear, gate: HardConcrete) -> int:
    weight = layer.weight
    if gate.shape == weight.shape:
        return 1
    if tuple(gate.shape) in ((len(weight),), (gates_of_layer(layer),)):
        return (weight[0].numel() + (layer.bias is not None)) * (len(weight) // len(gate.log_alpha))
    raise ValueError(
        f"gate has shape {tuple(gate.shape)}, but the layer has {len(weight)} output channels and weights of "
        f"shape {tuple(weight.shape)}; give the gate one of these shapes"
    )
