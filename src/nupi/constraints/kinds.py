"""The kinds of constraints: equalities, inequalities, and bands around 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.constraints.bounds import Bounds
from nupi.constraints.checks import checked_positive
from nupi.constraints.constraint import Constraint

if TYPE_CHECKING:
    from nupi.constraints.constraint import Size


class Equality(Constraint):
    """Constraints h(x) = 0, with multipliers of either sign.

    Example:
        >>> Equality(10)
        Equality(10)
    """

    kind = "an equality"


class Inequality(Constraint):
    """Constraints g(x) <= 0, with multipliers that are projected to [0, upper].

    Args:
        size: how many constraints the group has: a number, or the shape of the tensor of violations.
        init: where the multipliers start, >= 0.
        restart: whether a multiplier is set to 0 whenever its constraint is strictly satisfied (the dual restarts
            of Gallego-Posada et al., 2022). It ends overshoot at once. But it needs exact violations, and a
            multiplier that should settle above 0 does not.
        upper: the largest value of a multiplier, or None. If a constraint cannot be met, its multiplier stops there
            and does not grow without end. One unit of violation then costs `upper`.

    Example:
        >>> Inequality(3, upper=100.0)
        Inequality(3, upper=100)
    """

    kind = "an inequality"

    def __init__(
        self,
        size: Size = 1,
        *,
        init: float | torch.Tensor = 0.0,
        restart: bool = False,
        upper: float | None = None,
    ) -> None:
        self.bounds: Bounds = Bounds(0.0, checked_positive("upper", upper), bool(restart))
        super().__init__(size, init=init)

    @property
    def restart(self) -> bool:
        """Whether a multiplier is set to 0 whenever its constraint is strictly satisfied."""
        return self.bounds.restart

    @property
    def upper(self) -> float | None:
        """The largest value of a multiplier, or None."""
        return self.bounds.upper

    def _options(self) -> list[str]:
        restart = ["restart=True"] if self.restart else []
        return restart if self.upper is None else [*restart, f"upper={self.upper:g}"]


class Band(Constraint):
    """Constraints |h(x)| <= tolerance, with multipliers that return to 0 inside the band.

    There are two multipliers for each constraint, in a last dimension of 2: one for h(x) <= tolerance and one for
    -h(x) <= tolerance, each >= 0. At most one of them is above 0 at a solution; their difference is the multiplier of
    h(x). Violations are given as h(x), of the shape `size`.

    Args:
        size: how many constraints the group has: a number, or the shape of the tensor of violations.
        tolerance: how far from 0 a violation may be, > 0.
        init: where the multipliers start, >= 0.

    Example:
        >>> Band(10, tolerance=0.02)
        Band(10, tolerance=0.02)
    """

    kind = "a band"
    bounds: Bounds = Bounds()

    def __init__(self, size: Size = 1, *, tolerance: float, init: float | torch.Tensor = 0.0) -> None:
        checked = checked_positive("tolerance", tolerance)
        if checked is None:
            raise TypeError("tolerance must be a positive number, but None came; use Equality for h(x) = 0")
        self.tolerance = checked
        super().__init__(size, init=init)

    @property
    def multiplier_shape(self) -> torch.Size:
        """Two multipliers for each constraint."""
        return torch.Size((*self.shape, 2))

    def errors(self, violation: torch.Tensor) -> torch.Tensor:
        """How far h(x) is above the band, and how far below."""
        return torch.stack([violation - self.tolerance, -violation - self.tolerance], dim=-1)

    def _options(self) -> list[str]:
        return [f"tolerance={self.tolerance:g}"]
