"""The example call of a model, on which shapes, sizes and times are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

Example: TypeAlias = "torch.Tensor | tuple[Any, ...] | Mapping[str, Any]"


@dataclass(frozen=True)
class Call:
    """The arguments of one call.

    Args:
        positional: the arguments by position.
        named: the arguments by name.

    Example:
        >>> call = Call.of({"input": torch.ones(2, 3)})
        >>> call(nn.Linear(3, 5)).shape
        torch.Size([2, 5])
        >>> str(call)
        'input, a tensor (2, 3) of torch.float32'
    """

    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @classmethod
    def of(cls, example: Example | Call) -> Call:
        """Make a call from a user's example: an input, a tuple of arguments, or a dict of arguments by name."""
        if isinstance(example, Call):
            return example
        if isinstance(example, Mapping):
            return cls((), dict(example))
        return cls(example if isinstance(example, tuple) else (example,), {})

    def __call__(self, model: nn.Module) -> Any:
        """Call the model with these arguments."""
        return model(*self.positional, **self.named)

    def on_cpu(self) -> Call:
        """The same call with all tensors on the CPU."""
        positional, named = pytree.tree_map_only(
            torch.Tensor, torch.Tensor.cpu, (self.positional, self.named)
        )
        return Call(positional, named)

    def __str__(self) -> str:
        named = [f"{name}, {_described(value)}" for name, value in self.named.items()]
        return "; ".join([*map(_described, self.positional), *named])


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return f"a {type(value).__name__}"
