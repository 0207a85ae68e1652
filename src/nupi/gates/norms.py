"""Layer, RMS and group norms with gates. The output of a closed channel is exactly 0.

A layer norm takes its mean and its variance over all channels, zeros included. The gated form takes them over the open
channels only, so it equals a norm that has only these channels:

    y = z (x - mean over open channels) / deviation over open channels * weight + z bias

A group norm takes them over the channels of a group, so each group has one gate and is removed as a whole.
"""

from __future__ import annotations

import torch
from torch import nn

from nupi.gates.hard_concrete import HardConcrete  # noqa: TC001 - the example below uses it
from nupi.gates.layers import PLACES, Gated, Place, spread

OVER_OPEN = "mean_over_open_channels"  # marks a plain norm that comes from a gated one


class GatedNorm(Gated):
    """Base class of the gated norms of this module."""

    place: Place

    def _prepare(self, norm: nn.Module, gate: HardConcrete, place: Place, parameters_per_gate: int) -> None:
        if place not in PLACES:
            raise ValueError(f"place={place!r} must be one of {', '.join(map(repr, PLACES))}")
        if tuple(gate.shape) != (wanted := (gates_of(norm),)):
            raise ValueError(
                f"gate has shape {tuple(gate.shape)}, but this {type(norm).__name__} needs HardConcrete({wanted[0]})"
            )
        self._take_over(norm, gate)
        self.place = place
        self.parameters_per_gate = parameters_per_gate

    def all_parameters(self) -> int:
        """The same as `gated_parameters`: every parameter of the layer in front belongs to a channel."""
        return self.gated_parameters()


class GatedLayerNorm(GatedNorm, nn.LayerNorm):
    """A layer norm over the last dimension, with a gate for each channel; arguments as for `GatedBatchNorm2d`.

    With z the gates, and mean and variance over the open channels alone:

        y = z ((x - mean) / sqrt(variance + eps) * weight + bias)

    Example:
        >>> norm = GatedLayerNorm(nn.LayerNorm(4), HardConcrete(4)).eval()
        >>> with torch.no_grad():
        ...     _ = norm.gate.log_alpha[2:].fill_(-5.0)
        >>> norm(torch.tensor([[1.0, 3.0, 100.0, 7.0]]))  # the last two are closed
        tensor([[-1.,  1.,  0.,  0.]], grad_fn=...)
    """

    def __init__(
        self, norm: nn.LayerNorm, gate: HardConcrete, *, place: Place = "after", parameters_per_gate: int = 1
    ) -> None:
        self._prepare(norm, gate, place, parameters_per_gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The norm over the open channels."""
        x, z, is_open, count = _opened(input, self.gate(), self.place)
        centred = (x - (x * is_open).sum(-1, keepdim=True) / count) * is_open
        return _scaled(self, centred, z, count, self.eps).to(input.dtype)


class GatedRMSNorm(GatedNorm, nn.RMSNorm):
    """An RMS norm over the last dimension, with a gate for each channel; arguments as for `GatedBatchNorm2d`.

    With z the gates, the mean is taken over the open channels alone:

        y = z x / sqrt(mean of x^2 over open channels + eps) * weight

    Example:
        >>> norm = GatedRMSNorm(nn.RMSNorm(4), HardConcrete(4)).eval()
        >>> with torch.no_grad():
        ...     _ = norm.gate.log_alpha[2:].fill_(-5.0)
        >>> norm(torch.tensor([[1.0, 7.0, 100.0, 7.0]]))  # the last two are closed: the mean square is 25
        tensor([[0.2000, 1.4000, 0.0000, 0.0000]], grad_fn=...)
    """

    def __init__(
        self, norm: nn.RMSNorm, gate: HardConcrete, *, place: Place = "after", parameters_per_gate: int = 1
    ) -> None:
        self._prepare(norm, gate, place, parameters_per_gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """The norm over the open channels."""
        x, z, is_open, count = _opened(input, self.gate(), self.place)
        eps = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return _scaled(self, x * is_open, z, count, eps).to(input.dtype)


class GatedGroupNorm(GatedNorm, nn.GroupNorm):
    """A group norm with a gate for each group; arguments as for `GatedBatchNorm2d`.

    A group has its own mean and variance, so it is open or closed as a whole. With z the gate of a group,
    y = z norm(x).

    Example:
        >>> norm = GatedGroupNorm(nn.GroupNorm(2, 4), HardConcrete(2)).eval()
        >>> with torch.no_grad():
        ...     _ = norm.gate.log_alpha[1:].fill_(-5.0)
        >>> norm(torch.tensor([[1.0, 3.0, 7.0, 100.0]]))  # the second group is closed
        tensor([[-1.,  1., -0.,  0.]], grad_fn=...)
    """

    def __init__(
        self, norm: nn.GroupNorm, gate: HardConcrete, *, place: Place = "after", parameters_per_gate: int = 1
    ) -> None:
        self._prepare(norm, gate, place, parameters_per_gate)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Apply the norm with a gate per group."""
        z = spread(self.gate(), self.num_channels)
        z = z.to(input.dtype).view(-1, *[1] * (input.dim() - 2))
        if self.place == "before":
            return torch.where(z > 0, super().forward(input * z), 0.0)
        return torch.mul(super().forward(input), z)


def gates_of(norm: nn.Module) -> int:
    """How many gates a norm needs: one per channel, or one per group."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_groups
    return channels_of(norm)


def channels_of(norm: nn.Module) -> int:
    """The number of channels of a norm; refuses a layer norm that also takes its mean over space."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels
    if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        if len(norm.normalized_shape) != 1:
            raise ValueError(
                f"a {type(norm).__name__} over {tuple(norm.normalized_shape)} takes its mean over space too; only a "
                "norm over the last dimension, the channels, has a gated form"
            )
        return int(norm.normalized_shape[0])
    features: int = norm.num_features  # type: ignore[assignment]
    return features


def _opened(
    x: torch.Tensor, z: torch.Tensor, place: Place
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The input in float32 or wider, the gates after the norm, which channels are open, and how many."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    is_open = (z > 0).to(x.dtype)
    count = is_open.sum().clamp(min=1)
    if place == "before":
        return x * z.to(x.dtype), is_open, is_open, count
    return x, z.to(x.dtype), is_open, count


def _scaled(
    norm: nn.Module, centred: torch.Tensor, z: torch.Tensor, count: torch.Tensor, eps: float
) -> torch.Tensor:
    mean_square = centred.square().sum(-1, keepdim=True) / count
    y = centred * torch.rsqrt(mean_square + eps) * z
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if isinstance(weight, torch.Tensor):
        y = y * weight
    return y if bias is None else y + bias * z


GATED_NORMS: dict[type[nn.Module], type[GatedNorm]] = {
    nn.LayerNorm: GatedLayerNorm,
    nn.RMSNorm: GatedRMSNorm,
    nn.GroupNorm: GatedGroupNorm,
}
