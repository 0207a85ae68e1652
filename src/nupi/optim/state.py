"""State tensors of a parameter: how they are made, and how they follow its device and dtype."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Iterable


def allocate(state: dict[str, torch.Tensor], param: torch.Tensor, slots: Iterable[str]) -> None:
    """Make these slots, with zeros, on the device of the parameter, in float32 or wider."""
    # State made in inference mode could not be used outside of it; a compiled graph has no such mode.
    with nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False):
        for slot in slots:
            state[slot] = torch.zeros(param.shape, dtype=widened(param.dtype), device=param.device)


def follow(state: dict[str, torch.Tensor], param: torch.Tensor) -> None:
    """Move state to the device of its parameter, and to the dtype that the parameter was cast to."""
    for slot, value in state.items():
        dtype = value.dtype if value.dtype == torch.bool else widened(param.dtype)
        state[slot] = value.to(param.device, dtype)
