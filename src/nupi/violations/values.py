"""What all kinds of violations need for their values: wide types to add them in, and checks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.rule import widened

if TYPE_CHECKING:
    from nupi.violations.target import Target


def wide(values: torch.Tensor) -> torch.Tensor:
    """Values in float32 or wider, so that they can be added."""
    return values.to(widened(values.dtype))


def exact(values: torch.Tensor) -> torch.Tensor:
    """Values in float64 without their graph; in float32 on Apple's devices, which have no float64."""
    return values.detach().to(torch.float32 if values.device.type == "mps" else torch.float64)


def host_may_read(tensor: torch.Tensor) -> bool:
    """Whether the host can read this tensor's values without waiting for a device or breaking a compiled graph."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def check_values(target: Target, values: torch.Tensor) -> None:
    """Refuse values that are not real numbers, or are on another device than the multipliers."""
    if not values.is_floating_point():
        fix = "take its real part" if values.is_complex() else "use .float()"
        raise TypeError(f"the violation of {target.name!r} is {values.dtype}, not floating-point; {fix}")
    check_device(f"the violation of {target.name!r}", values, target)


def check_device(what: str, tensor: torch.Tensor, target: Target) -> None:
    """Refuse a tensor that is on another device than the multipliers."""
    if tensor.device != target.multiplier.device:
        raise ValueError(
            f"{what} is on {tensor.device}, but its multiplier is on {target.multiplier.device}; "
            f"move the multipliers with lagrangian.to({str(tensor.device)!r})"
        )
