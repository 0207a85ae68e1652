"""One violation with two measures: one that the model can follow, and one that is to be met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nupi.violations.base import as_violation
from nupi.violations.kind import Violation

if TYPE_CHECKING:
    import torch

    from nupi.violations.base import Target
    from nupi.violations.kind import Move, Reduce


@dataclass(frozen=True, eq=False)
class Measured(Violation):
    """A violation measured twice: `soft` is in the Lagrangian, `hard` moves the multipliers.

    The model needs a measure with a gradient, such as a mean of sigmoids; what is asked for is often one without, such
    as a rate of decisions. The same object then serves `lagrangian(loss, violations)` and `ascend`:

        L(x, theta) = f(x) + theta . soft(x)        what the model descends on
        e_t         = hard(x_t)                     what the dual optimizer is given

    Args:
        soft: the violation that the model sees, differentiable: a tensor or any kind of violation.
        hard: the violation that is to be met, of the same group.

    Example:
        >>> import torch
        >>> Measured(soft=torch.tensor([0.2]), hard=torch.tensor([0.25])).hard
        tensor([0.2500])
    """

    soft: torch.Tensor | Violation
    hard: torch.Tensor | Violation

    def __post_init__(self) -> None:
        for name, measure in (("soft", self.soft), ("hard", self.hard)):
            as_violation(f"Measured.{name}", measure)

    def term(self, target: Target) -> torch.Tensor:
        """The term of the soft measure."""
        return as_violation(target.name, self.soft).term(target)

    def error(self, target: Target) -> Move | None:
        """The error of the hard measure."""
        return as_violation(target.name, self.hard).error(target)

    def adds_up(self, reduce: Reduce) -> bool:
        """As the soft measure, which is in the Lagrangian."""
        return as_violation("soft", self.soft).adds_up(reduce)

    def moving(self) -> Violation:
        """The hard measure: it is what is joined over processes."""
        return as_violation("hard", self.hard).moving()
