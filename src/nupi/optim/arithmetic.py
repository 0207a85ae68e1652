"""Arithmetic on numbers or tensors, for tensors so small that the call of an operation is most of its cost."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from nupi.rule import Gain


def number(value: Gain, like: torch.Tensor) -> Gain:
    """A number as an operand for tensors like this one; a tensor is returned as it is.

    Torch makes a new tensor of a number at every operation, which takes longer than the operation. This one is cached.
    """
    if isinstance(value, torch.Tensor) or being_traced():
        return value
    return _kept(float(value), like.dtype, like.device)


def being_traced() -> bool:
    """Whether operations are being traced, by a compiler or for a sweep: a trace must not use cached tensors."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


@lru_cache(maxsize=1024)
def _kept(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # A tensor made in inference mode could not be used later with gradients.
    with torch.inference_mode(mode=False):
        return torch.tensor(value, dtype=dtype, device=device)


def times(x: torch.Tensor, factor: float) -> torch.Tensor:
    """X times a number; x itself if the number is 1, the most common case."""
    return x if factor == 1.0 else x * number(factor, x)


def at_most(x: Gain, most: Gain) -> Gain:
    """The smaller of two, each a number or a tensor."""
    if isinstance(x, torch.Tensor):
        return torch.minimum(x, most) if isinstance(most, torch.Tensor) else x.clamp(max=most)
    return most.clamp(max=x) if isinstance(most, torch.Tensor) else min(x, most)


def at_least(x: Gain, least: float) -> Gain:
    """The larger of two."""
    return x.clamp(min=least) if isinstance(x, torch.Tensor) else max(x, least)


def exp(x: Gain) -> Gain:
    """e^x."""
    return torch.exp(x) if isinstance(x, torch.Tensor) else math.exp(x)
