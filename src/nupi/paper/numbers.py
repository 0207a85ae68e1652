"""Numbers over seeds, as tables and claims print them."""

from __future__ import annotations

import torch  # noqa: TC002 - the examples below use it


def spread(values: torch.Tensor, scale: float = 1.0, digits: int = 1, unit: str = "") -> str:
    """Mean and standard deviation over the seeds, as text.

    >>> spread(torch.tensor([0.91, 0.93]), 100, unit="%")
    '92.0 ± 1.4%'
    """
    if len(values) == 1:
        return f"{scale * values.item():.{digits}f}{unit}"
    scaled = scale * values.double()
    return f"{scaled.mean():.{digits}f} ± {scaled.std():.{digits}f}{unit}"


def percent(values: torch.Tensor, digits: int = 1) -> str:
    """Mean and standard deviation over the seeds, of shares, in percent."""
    return spread(values, 100, digits, "%")


def clearly_above(values: torch.Tensor, bound: float = 0.0) -> bool:
    """Whether the mean over the seeds exceeds a bound by more than twice its standard error.

    A single seed has no spread, and decides by itself.

    >>> clearly_above(torch.tensor([1.0, 2.0, 3.0]), 0.8), clearly_above(torch.tensor([1.0, 2.0, 3.0]), 0.9)
    (True, False)
    """
    values = values.double()
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    return values.mean().item() - bound > 2 * error
