"""The interval in which multipliers must be, and the projection to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nupi.rule import as_list, clamp_into_

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nupi.rule import Tensors


class Bounds(NamedTuple):
    """The interval in which multipliers must be. Dual optimizers, `ascend`, `minimize` and `sweep` project with it.

    After a step, theta = min(upper, max(lower, theta)).

    Attributes:
        lower: the smallest value, or None.
        upper: the largest value, or None.
        restart: whether a multiplier is set to `lower` when its error is negative.
        both: whether errors of both signs are violations, as for an equality. By default only errors above 0 are.

    Example:
        >>> import torch
        >>> theta = torch.tensor([-0.5, 0.5, 9.0])
        >>> Bounds(lower=0.0, upper=5.0).project_(theta, torch.zeros(3))
        >>> theta
        tensor([0.0000, 0.5000, 5.0000])
    """

    lower: float | None = 0.0
    upper: float | None = None
    restart: bool = False
    both: bool = False

    def project_(self, theta: Tensors, e: Tensors, integrators: Sequence[Tensors] = ()) -> None:
        """Project multipliers that were just moved to the bounds, in place.

        Args:
            theta: the multipliers.
            e: the errors that moved them.
            integrators: state that has summed up the past of `theta`; a restart clears it.
        """
        clamp_into_(theta, theta, self.lower, self.upper)
        if self.restart:
            for tensors in (theta, *integrators):
                for tensor, error in zip(as_list(tensors), as_list(e), strict=True):
                    tensor.masked_fill_(error < 0, 0.0)

    def outside(self, theta: torch.Tensor) -> torch.Tensor:
        """Which multipliers a step has taken beyond the bounds."""
        return theta != self.clamped(theta)

    def clamped(self, theta: torch.Tensor) -> torch.Tensor:
        """The nearest values within the bounds."""
        return theta.clamp(self.lower, self.upper)
