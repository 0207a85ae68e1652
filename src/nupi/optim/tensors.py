"""Small questions about tensors that are asked at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def fits(state: torch.Tensor | None, param: torch.Tensor) -> bool:
    """Whether a parameter has state, of its own dtype and where it is."""
    return state is not None and state.dtype == param.dtype and state.device == param.device


def rows_like(each: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor over leading dimensions, with the trailing ones of `like` added to broadcast over."""
    return each.view(*each.shape, *(1,) * (like.dim() - each.dim()))


def flat_index(error: torch.Tensor) -> torch.Tensor:
    """The coordinates of a coalesced sparse gradient as indices into its flattened leading dimensions."""
    index = error.indices()
    flat = index[0]
    for dimension in range(1, error.sparse_dim()):
        flat = flat * error.shape[dimension] + index[dimension]
    return flat
