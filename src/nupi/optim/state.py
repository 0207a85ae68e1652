"""State tensors of a parameter: how they begin, and how they go where it goes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Iterable


def allocate(state: dict[str, torch.Tensor], param: torch.Tensor, slots: Iterable[str]) -> None:
    """Begin these slots at 0, beside a parameter and float32 or wider."""
    # State that is born in inference mode could not be used outside of it; a graph knows no such mode.
    with nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False):
        for slot in slots:
            state[slot] = torch.zeros(param.shape, dtype=widened(param.dtype), device=param.device)


def follow(state: dict[str, torch.Tensor], param: torch.Tensor) -> None:
    """Take state along to where a parameter was moved, or to the dtype it was cast to."""
    for slot, value in state.items():
        dtype = value.dtype if value.dtype == torch.bool else widened(param.dtype)
        state[slot] = value.to(param.device, dtype)
