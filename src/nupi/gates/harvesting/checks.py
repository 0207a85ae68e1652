"""What a harvest asks of the model and of the example, and how it compares two models' outputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from nupi.gates.graph import inside_wrapper, unchanged

if TYPE_CHECKING:
    from nupi.gates.call import Call


class HarvestError(ValueError):
    """The model cannot be harvested. It has not been changed.

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=1))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> with torch.no_grad():
        ...     _ = model[0].gate.log_alpha[1:].fill_(-5.0)  # softmax makes the zeros positive
        >>> nupi.gates.harvest(model, torch.randn(16, 8))
        Traceback (most recent call last):
        nupi.gates.harvesting.checks.HarvestError: closed channels of '0' cannot be taken out: ...
        >>> list(nupi.gates.harvest(model, torch.randn(16, 8), partial=True).stuck)  # leaves them in
        ['0']
    """


def check_model(model: nn.Module) -> None:
    """Refuse a model inside one of torch's wrappers (compiled, data parallel)."""
    if inside := inside_wrapper(model):
        raise HarvestError(f"model is wrapped in {type(model).__name__}; pass model.{inside}")


def copied(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode."""
    try:
        return copy.deepcopy(model).eval()
    except Exception as error:  # copying runs the user's own code, which may raise anything
        raise HarvestError(
            f"model cannot be copied: {type(error).__name__}: {error}. If its forward pass keeps a tensor, as "
            "self.features = y does, keep y.detach() or delete the attribute first"
        ) from error


def outputs(model: nn.Module, call: Call, name: str = "model") -> list[torch.Tensor]:
    """All output tensors that a harvest must not change. The call leaves the model as it was."""
    try:
        with unchanged(model), torch.no_grad():
            leaves = pytree.tree_leaves(_without_heads(call(model)))
    except Exception as error:  # a forward pass too may raise anything
        raise HarvestError(
            f"{name} fails on the example (an input, a tuple of all arguments, or a dict of them by name), which is "
            f"{call}: {type(error).__name__}: {error}"
        ) from error
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not any(tensor.numel() for tensor in tensors):
        raise HarvestError(
            "model gives no numbers on the example that could be compared; pass an example that is not empty, and "
            "a model that returns tensors, or tuples, lists or dicts of them"
        )
    return tensors


def _without_heads(output: Any) -> Any:
    """An output of `transformers` without its entries per head: the cache and the attention weights."""
    if not isinstance(output, Mapping):
        return output
    return {
        key: value
        for key, value in output.items()
        if key != "past_key_values" and not str(key).endswith("attentions")
    }


def rounding(model: nn.Module) -> float:
    """The largest `difference` that rounding explains: 1e-5, or four times the eps of the parameters' dtype if larger.

    Transformers of 2 and of 12 layers, harvested in bfloat16 and in float16, differed by 0.6 to 2 eps.

    >>> rounding(nn.Linear(2, 2)), rounding(nn.Linear(2, 2).bfloat16())
    (1e-05, 0.03125)
    """
    coarse = [torch.finfo(each.dtype).eps for each in model.parameters() if each.is_floating_point()]
    return max(1e-5, 4 * max(coarse, default=0.0))


def difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest difference between outputs, divided by the largest output or 1; nan if any output is nan.

    >>> difference([torch.tensor([4.0, -torch.inf])], [torch.tensor([3.0, -torch.inf])])
    0.25
    """
    if [each.shape for each in expected] != [each.shape for each in found]:
        raise HarvestError("the outputs of the smaller model have other shapes")
    worst = [_difference(a, b) for a, b in zip(expected, found, strict=True) if a.numel()]
    return float(torch.stack(worst).max())  # torch's maximum of nan and a number is nan


def _difference(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(expected.dtype, torch.float64)
    a, b = expected.to("cpu", wide), found.to("cpu", wide)
    size = a[a.isfinite()].abs()
    largest = size.max().clamp(min=1) if size.numel() else 1.0
    return torch.where(a == b, 0.0, (a - b).abs()).max() / largest  # two equal infinities do not differ
