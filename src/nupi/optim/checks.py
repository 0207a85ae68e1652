"""What is refused before it can do harm: gains, parameters and checkpoints that do not fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nupi.rule import Gain

ANOTHER_PROBLEM = "it is a checkpoint of another problem, and nothing was loaded"


def widened(dtype: torch.dtype) -> torch.dtype:
    """State and arithmetic are never narrower than float32."""
    return torch.promote_types(dtype, torch.float32)


def check_parameter(param: torch.Tensor) -> None:
    """Refuse what cannot be a multiplier."""
    if not param.is_floating_point():
        raise TypeError(
            f"params must be floating-point multipliers, but one is {param.dtype}; make it float32"
        )


def checked_gain(name: str, gain: Gain, param: torch.Tensor) -> Gain:
    """A gain as a finite number, or as a tensor on the parameter's device that broadcasts to it."""
    if isinstance(gain, torch.Tensor):
        if not _broadcasts(gain.shape, param.shape):
            raise ValueError(
                f"{name} has shape {tuple(gain.shape)}, which does not broadcast to a parameter of shape "
                f"{tuple(param.shape)}; pass a number, or one {name} per constraint"
            )
        gain = gain.detach().to(device=param.device, dtype=widened(param.dtype))
        finite = bool(torch.isfinite(gain).all())
    elif isinstance(gain, bool) or not isinstance(gain, (int, float)):
        raise TypeError(f"{name} must be a number or a tensor, but {gain!r} is a {type(gain).__name__}")
    else:
        finite = math.isfinite(gain)
    if not finite:
        raise ValueError(f"{name} must be finite, but {gain!r} came")
    return gain


def check_range(name: str, gain: Gain, low: float, high: float, *, closed: bool, fix: str) -> None:
    """Refuse a gain outside (low, high), or outside [low, high) if `closed`, and say how to mend it."""
    values = torch.as_tensor(gain)
    inside = ((values >= low) if closed else (values > low)) & (values < high)
    if not bool(inside.all()):
        interval = f"{'[' if closed else '('}{low:g}, {high:g})"
        raise ValueError(f"{name} must lie in {interval}, but {gain!r} came; {fix}")


def check_step_size(name: str, gain: Gain) -> None:
    """Refuse a step size that would turn ascent into descent."""
    check_range(name, gain, 0.0, math.inf, closed=True, fix="use maximize=False to minimize")


def check_smoothing(name: str, gain: Gain) -> None:
    """Refuse a moving average that does not forget."""
    check_range(name, gain, -1.0, 1.0, closed=False, fix="outside it the past is not forgotten but grows")


def check_checkpoint(param_groups: list[dict[str, Any]], state_dict: dict[str, Any]) -> None:
    """Refuse a checkpoint of other parameters before anything of it is loaded."""
    here = [len(group["params"]) for group in param_groups]
    there = [len(group["params"]) for group in state_dict["param_groups"]]
    if here != there:
        raise ValueError(
            f"state_dict has param groups of {there} parameters, but this optimizer has groups of {here}; "
            f"{ANOTHER_PROBLEM}"
        )
    params = [param for group in param_groups for param in group["params"]]
    saved_ids = [saved_id for group in state_dict["param_groups"] for saved_id in group["params"]]
    for position, (saved_id, param) in enumerate(zip(saved_ids, params, strict=True)):
        for slot, value in state_dict["state"].get(saved_id, {}).items():
            expected = param.shape[: value.dim()] if slot == "seen" else param.shape
            if value.shape != expected:
                raise ValueError(
                    f"state_dict holds {slot!r} of shape {tuple(value.shape)} for parameter {position}, "
                    f"whose shape is {tuple(param.shape)}; {ANOTHER_PROBLEM}"
                )


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of `shape` can stand where one of `target` is wanted."""
    if len(shape) > len(target):
        return False
    trailing = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True))
