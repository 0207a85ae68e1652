"""Batch norms with hard-concrete gates. The output of a closed channel is exactly 0.

A plain norm after a closed gate would make the channel nonzero again (by its bias), and would count the zeros in its
running statistics. So if a batch norm follows a layer, the gates are in the norm. With z the gate of a channel and x
the output of the layer:

    place="before"    y = [z > 0] norm(z x)     as if the layer's weights were gated
    place="after"     y = z norm(x)             the norm cannot cancel the gate's scale, so it learns faster

In both, a channel with z = 0 gives exactly zero and does not change the running statistics.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nupi.gates.hard_concrete import HardConcrete  # noqa: TC001 - part of the signature
from nupi.gates.layers import PLACES, Gated, Place, spread


class _GatedBatchNorm(Gated, _BatchNorm):
    """Base class of the gated batch norms."""

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
                "norm.momentum is None: the running statistics would average over all batches, also those in which a "
                "channel was closed; give the norm a momentum, for example 0.1"
            )
        self._take_over(norm, gate)
        self.place: Place = place
        self.parameters_per_gate = parameters_per_gate
        counts = torch.zeros(norm.num_features, dtype=torch.long, device=gate.log_alpha.device)
        self.register_buffer("open_batches", counts, persistent=False)

    def all_parameters(self) -> int:
        """The same as `gated_parameters`: every parameter of the layer in front belongs to a channel."""
        return self.gated_parameters()

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Apply the norm with its gates."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        z = spread(self.gate(), self.num_features)
        if self.place == "after":
            return self._norm(input, z, z > 0)
        gated = input * z.to(input.dtype).view(-1, *[1] * (input.dim() - 2))
        return self._norm(gated, (z > 0).to(z.dtype), z > 0)

    def _norm(self, input: torch.Tensor, scale: torch.Tensor, is_open: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The batch norm of torch times `scale`, which leaves the running statistics of closed channels as they are.

        The scale multiplies weight and bias, one product per channel instead of one per number:
        scale (w x + b) = (scale w) x + scale b.
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
        new_mean, new_variance = mean.clone(), variance.clone()  # the norm updates these, in place
        momentum = 1.0 if self.momentum is None else self.momentum
        output = functional.batch_norm(input, new_mean, new_variance, *affine, True, momentum, self.eps)
        with torch.no_grad():
            tracked.add_(1)
            if self.momentum is None:  # the average over the batches in which the channel was open
                self.open_batches.add_(is_open)
                share = (1 / self.open_batches.clamp(min=1)).to(mean.dtype)
                new_mean, new_variance = mean.lerp(new_mean, share), variance.lerp(new_variance, share)
            mean.copy_(torch.where(is_open, new_mean, mean))
            variance.copy_(torch.where(is_open, new_variance, variance))
        return output

    def reset_running_stats(self) -> None:
        """Reset the running statistics, and the number of batches in which each channel was open."""
        super().reset_running_stats()
        self.open_batches.zero_()


class GatedBatchNorm1d(_GatedBatchNorm, nn.BatchNorm1d):
    """A batch norm behind a linear layer, with a gate for each channel; arguments as for `GatedBatchNorm2d`.

    Example:
        >>> norm = GatedBatchNorm1d(nn.BatchNorm1d(3), HardConcrete(3), parameters_per_gate=9)
        >>> with torch.no_grad():
        ...     _ = norm.gate.log_alpha[2:].fill_(-5.0)  # close the last channel
        >>> norm.gated_parameters(), norm.realised_parameters().item()  # of a linear layer of 8 to 3
        (27, 18)
    """


class GatedBatchNorm2d(_GatedBatchNorm, nn.BatchNorm2d):
    """A batch norm with a gate for each channel. A closed channel is exactly 0 behind it.

    With z the gate of a channel and x the input, the output is

        place="after"     y = z norm(x)
        place="before"    y = [z > 0] norm(z x)

    Args:
        norm: the plain layer; the new one uses its parameters, buffers and hyperparameters.
        gate: gates of shape (num_features,), or one gate for each group of consecutive channels.
        place: "before" gates the norm's input, "after" its output.
        parameters_per_gate: the number of parameters that one gate switches: those of one channel of the layer in
            front of the norm. The norm's own two are not counted, as in the paper.

    Example:
        >>> norm = GatedBatchNorm2d(nn.BatchNorm2d(3), HardConcrete(3)).eval()
        >>> with torch.no_grad():
        ...     _ = norm.bias.fill_(1.0)
        ...     _ = norm.gate.log_alpha[2:].fill_(-5.0)  # close the last channel
        >>> norm(torch.zeros(1, 3, 2, 2)).amax((0, 2, 3))  # 0 in spite of the bias
        tensor([1., 1., 0.], grad_fn=...)
    """
