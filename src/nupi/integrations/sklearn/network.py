"""The module that a classifier trains: a linear one, an MLP, or the user's own, after a standardization of columns."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence


class Standardize(nn.Module):
    """(x - mean) / deviation of the training rows; a constant column becomes 0.

    Args:
        x: the training rows.
        weights: the weight of each row.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, x: torch.Tensor, weights: torch.Tensor) -> None:
        super().__init__()
        share = (weights / weights.sum()).unsqueeze(1)
        mean = (share * x).sum(0)
        deviation = (share * (x - mean).square()).sum(0).sqrt()
        # Do not divide the rounding errors of a constant column by their tiny deviation.
        tiny = 100 * torch.finfo(x.dtype).eps * x.abs().amax(0)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", torch.where(deviation > tiny, deviation, 1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The standardized rows."""
        return (x - self.mean) / self.deviation


def network(
    given: Any,
    hidden: int | Sequence[int],
    x: torch.Tensor,
    weights: torch.Tensor,
    outputs: int,
    *,
    standardize: bool,
) -> nn.Module:
    """A module from rows (rows, features) to logits (rows, outputs), in the dtype and on the device of `x`.

    Args:
        given: a module, which is copied; a function of the numbers of inputs and of outputs that makes one; or None.
        hidden: the widths of the hidden layers, or of the only one, if no module is given; () for a linear model.
        x: the training rows.
        weights: the weight of each row.
        outputs: the number of logits of a row.
        standardize: whether rows are standardized first.
    """
    inputs = x.shape[1]
    if given is None:
        widths = (hidden,) if isinstance(hidden, int) else hidden
        inner: nn.Module = _layers((inputs, *widths, outputs))
    elif isinstance(given, nn.Module):
        inner = copy.deepcopy(given)
    elif callable(given):
        inner = given(inputs, outputs)
    else:
        raise TypeError(
            f"module must be a torch module, or a function (inputs, outputs) that makes one, but {given!r} came"
        )
    parts = [Standardize(x, weights), inner] if standardize else [inner]
    return nn.Sequential(*parts).to(device=x.device, dtype=x.dtype)


def _layers(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def logits_of(module: nn.Module, x: torch.Tensor, classes: int) -> torch.Tensor:
    """The logits: one per row for two classes, (rows,); else one for each class, (rows, classes)."""
    scores = module(x)
    wanted = [(len(x),), (len(x), 1)] if classes == 2 else [(len(x), classes)]
    if not isinstance(scores, torch.Tensor) or tuple(scores.shape) not in wanted:
        came = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ValueError(
            f"module gave {came} for {len(x)} rows of {classes} classes; it must give {wanted[-1]}"
        )
    return scores.reshape(-1) if classes == 2 else scores
