"""Linear layers with gates on their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nupi.gates.hard_concrete import HardConcrete  # noqa: TC001 - the example below uses it
from nupi.gates.layers import Gated, is_conv1d


class GatedInput(Gated):
    """Base class of layers with gates on their inputs.

    Attributes:
        size: how many consecutive inputs one gate switches.
    """

    size: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Apply the layer to its gated input."""
        output: torch.Tensor = super().forward(input * self._spread(self.gate()).to(input.dtype))
        return output

    def gated_weight(self, z: torch.Tensor) -> torch.Tensor:
        """The weight multiplied by the gates."""
        weight = self.weight
        assert isinstance(weight, torch.Tensor)
        spread = self._spread(z).to(weight.dtype)
        return weight * (spread[:, None] if is_conv1d(self) else spread)

    def _spread(self, z: torch.Tensor) -> torch.Tensor:
        return z if self.size == 1 else z.repeat_interleave(self.size)


class GatedInputLinear(GatedInput, nn.Linear):
    """A linear layer with a gate for every `size` inputs; the bias has no gate.

    With z the gates, y = W (z x) + b.

    Args:
        linear: the plain layer; the new layer uses its parameters.
        gate: of shape (in_features / size,).
        size: how many consecutive inputs one gate switches: those of a head.
        parameters_per_gate: how many parameters one gate switches, in this layer and in those that make the inputs.

    Example:
        >>> layer = GatedInputLinear(nn.Linear(12, 8), HardConcrete(3), size=4, parameters_per_gate=4 * 8)
        >>> layer.gated_parameters()
        96
    """

    def __init__(self, linear: nn.Linear, gate: HardConcrete, *, size: int, parameters_per_gate: int) -> None:
        self._take_over(linear, gate)
        self.size, self.parameters_per_gate = size, parameters_per_gate


def gated_input(layer: nn.Module, gate: HardConcrete, *, size: int, parameters_per_gate: int) -> GatedInput:
    """`layer` with gates on its inputs; it is an `nn.Linear` or a `Conv1D`."""
    if isinstance(layer, nn.Linear):
        return GatedInputLinear(layer, gate, size=size, parameters_per_gate=parameters_per_gate)
    from nupi.gates.transformer.conv1d import GatedInputConv1D

    made: Any = GatedInputConv1D(layer, gate, size=size, parameters_per_gate=parameters_per_gate)
    assert isinstance(made, GatedInput)
    return made
