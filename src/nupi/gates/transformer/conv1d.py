"""GPT-2's own linear layer, `Conv1D`, with gates on its inputs. Imported only for models that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.pytorch_utils import Conv1D

from nupi.gates.transformer.layers import GatedInput

if TYPE_CHECKING:
    from nupi.gates.hard_concrete import HardConcrete


class GatedInputConv1D(GatedInput, Conv1D):  # type: ignore[misc]
    """`GatedInputLinear` for a `Conv1D`."""

    def __init__(self, conv: Conv1D, gate: HardConcrete, *, size: int, parameters_per_gate: int) -> None:
        self._take_over(conv, gate)
        self.size, self.parameters_per_gate = size, parameters_per_gate
