"""Convolution, linear and batch-norm layers with hard-concrete gates on their outputs or on their weights.

The shape of the gate says what it gates: one gate an output channel (structured), or one a weight
(unstructured). A gate on the channels of a convolution that a batch norm follows sits in the norm, because a
norm behind a closed gate would light the channel up again (its bias leaks) and would count the zeros into its
running statistics. With z the gate of a channel and x what the convolution gives:

    place="before"    y = [z > 0] norm(z x)     as if the convolution's weights were gated
    place="after"     y = z norm(x)             the norm cannot cancel the gate's scale, so it learns faster

In both, a channel with z = 0 gives exactly zero and leaves the running statistics alone.

A gated layer is made from a plain one and takes over its parameters, buffers, hooks and mode: an optimizer that
already holds the parameters goes on holding them, and their names in a state_dict stay.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nupi.gates.hard_concrete import HardConcrete  # noqa: TC001 - the examples below use it

IN_FRONT = "_layer_in_front"  # of a gated norm: a plain attribute, since a submodule would be there twice
Place: TypeAlias = Literal["before", "after"]
PLACES: tuple[Place, ...] = get_args(Place)


class Gated(nn.Module):
    """What every gated layer has. Final classes are below.

    Attributes:
        gate: the gates.
        parameters_per_gate: how many parameters of the network one gate switches.
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
        """The number of parameters that gates switch here."""
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
                f"{type(plain).__name__} does differently"
            )
        if "forward" in plain.__dict__:
            raise TypeError(
                f"this {type(plain).__name__} has a forward of its own, put on it by a wrapper, which would go past "
                "the gate; gate the model before it is wrapped"
            )
        if "weight" not in plain._parameters:
            raise TypeError(
                f"the weight of this {type(plain).__name__} is no parameter but computed from others (weight_norm, "
                "spectral_norm or prune); remove that first"
            )
        self.__dict__.update(plain.__dict__)
        self.__dict__.pop("_compiled_call_impl", None)  # of the plain layer: it would go past the gate
        for own in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[own] = plain.__dict__[own].copy()
        self.gate = gate.train(plain.training)


class GatedConv1d(Gated, nn.Conv1d):
    """A one-dimensional convolution with gates; arguments as for `GatedConv2d`."""

    def __init__(self, conv: nn.Conv1d, gate: HardConcrete) -> None:
        self._take_over(conv, gate)
        self.parameters_per_gate = _parameters_per_gate(conv, gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The convolution with its gated weight."""
        output: torch.Tensor = self._conv_forward(input, *gated_weight(self.gate(), self.weight, self.bias))
        return output


class GatedConv2d(Gated, nn.Conv2d):
    """A convolution with gates on its output channels or on its weights.

    Args:
        conv: the plain layer, whose parameters are taken over.
        gate: of shape (out_channels,), of shape (groups,), or of the weight's shape. A channel's gate takes its bias
            with it; a gate on single weights leaves the bias alone.

    Example:
        >>> layer = GatedConv2d(nn.Conv2d(3, 8, 3), HardConcrete(8))
        >>> layer.gated_parameters()  # 8 channels of 3 * 3 * 3 weights and a bias
        224
    """

    def __init__(self, conv: nn.Conv2d, gate: HardConcrete) -> None:
        self._take_over(conv, gate)
        self.parameters_per_gate = _parameters_per_gate(conv, gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The convolution with its gated weight."""
        output: torch.Tensor = self._conv_forward(input, *gated_weight(self.gate(), self.weight, self.bias))
        return output


class GatedLinear(Gated, nn.Linear):
    """A linear layer with gates on its output features or on its weights; arguments as for `GatedConv2d`.

    Example:
        >>> layer = GatedLinear(nn.Linear(784, 300), HardConcrete((300, 784)))
        >>> layer.gated_parameters()  # one gate a weight, none on the biases
        235200
    """

    def __init__(self, linear: nn.Linear, gate: HardConcrete) -> None:
        self._take_over(linear, gate)
        self.parameters_per_gate = _parameters_per_gate(linear, gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The linear map with its gated weight."""
        return functional.linear(input, *gated_weight(self.gate(), self.weight, self.bias))


class _GatedBatchNorm(Gated, _BatchNorm):
    """What the gated batch norms share."""

    momentum: float | None
    open_batches: torch.Tensor

    def __init__(
        self, norm: _BatchNorm, gate: HardConcrete, *, place: Place = "after", parameters_per_gate: int = 1
    ) -> None:
        if place not in PLACES:
            raise ValueError(f"place={place!r} must be one of {', '.join(map(repr, PLACES))}")
        if len(gate.shape) != 1 or norm.num_features % gate.shape[0]:
            raise ValueError(
                f"gate has shape {tuple(gate.shape)}, but the norm has {norm.num_features} channels; "
                f"build it as HardConcrete({norm.num_features})"
            )
        if norm.momentum is None:
            raise ValueError(
                "norm.momentum is None, a plain average over batches, which would count those that a channel "
                "was closed in; give the norm a momentum, for example 0.1"
            )
        self._take_over(norm, gate)
        self.place: Place = place
        self.parameters_per_gate = parameters_per_gate
        counts = torch.zeros(norm.num_features, dtype=torch.long, device=gate.log_alpha.device)
        self.register_buffer("open_batches", counts, persistent=False)

    def all_parameters(self) -> int:
        """As `gated_parameters`: they are those of the layer in front, whose every parameter is some channel's."""
        return self.gated_parameters()

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The norm, gated."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        z = spread(self.gate(), self.num_features)
        if self.place == "after":
            return self._norm(input, z, z > 0)
        gated = input * z.to(input.dtype).view(-1, *[1] * (input.dim() - 2))
        return self._norm(gated, (z > 0).to(z.dtype), z > 0)

    def _norm(self, input: torch.Tensor, scale: torch.Tensor, is_open: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Batch norm as torch has it, scaled, but that the running statistics of closed channels stay.

        The scale goes into the affine map, where it costs a product a channel and not one a number: with w and b the
        norm's own, scale (w x + b) = (scale w) x + scale b.
        """
        mean, variance, tracked = self.running_mean, self.running_var, self.num_batches_tracked
        scale = scale.to(
            next((each.dtype for each in (self.weight, variance) if each is not None), input.dtype)
        )
        affine = (
            scale if self.weight is None else self.weight * scale,
            None if self.bias is None else self.bias * scale,
        )
        if not self.training or mean is None or variance is None or tracked is None:
            batch = self.training or mean is None
            return functional.batch_norm(input, mean, variance, *affine, batch, 0.0, self.eps)
        new_mean, new_variance = mean.clone(), variance.clone()  # what the norm updates, in place
        momentum = 1.0 if self.momentum is None else self.momentum
        output = functional.batch_norm(input, new_mean, new_variance, *affine, True, momentum, self.eps)
        with torch.no_grad():
            tracked.add_(1)
            if self.momentum is None:  # the plain average over the batches that a channel was open in
                self.open_batches.add_(is_open)
                share = (1 / self.open_batches.clamp(min=1)).to(mean.dtype)
                new_mean, new_variance = mean.lerp(new_mean, share), variance.lerp(new_variance, share)
            mean.copy_(torch.where(is_open, new_mean, mean))
            variance.copy_(torch.where(is_open, new_variance, variance))
        return output

    def reset_running_stats(self) -> None:
        """As torch has it, and the count of batches that each channel was open in goes back to 0."""
        super().reset_running_stats()
        self.open_batches.zero_()


class GatedBatchNorm1d(_GatedBatchNorm, nn.BatchNorm1d):
    """`GatedBatchNorm2d` for what a linear layer gives."""


class GatedBatchNorm2d(_GatedBatchNorm, nn.BatchNorm2d):
    """A batch norm with a gate a channel, which a closed gate's channel cannot leak through.

    Args:
        norm: the plain layer, whose parameters, buffers and hyperparameters are taken over.
        gate: of shape (num_features,), or of one gate a group of channels in a row.
        place: "before" gates the norm's input, "after" its output.
        parameters_per_gate: the parameters one gate switches, those of one channel of the layer that feeds the
            norm. The norm's own two are not counted, as in the paper.
    """


def is_conv1d(layer: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, whose weight is transposed; told by its form, as it is not torch's."""
    sizes = (getattr(layer, "nx", None), getattr(layer, "nf", None))
    weight = getattr(layer, "weight", None)
    return weight is not None and tuple(weight.shape) == sizes


def gated_weight(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A weight and a bias under their gates."""
    z = z.to(weight.dtype)
    if z.shape == weight.shape:
        return weight * z, bias
    z = spread(z, len(weight))
    return weight * z.view(-1, *[1] * (weight.dim() - 1)), None if bias is None else bias * z


def spread(z: torch.Tensor, channels: int) -> torch.Tensor:
    """The gates of all channels, where each gate may have several in a row."""
    return z if len(z) == channels else z.repeat_interleave(channels // len(z))


def gates_of_layer(layer: nn.Module) -> int:
    """How many gates a layer's outputs have: one a channel, or one a group, which can only go as a whole."""
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
