"""One violation with two measures: a smooth one for the model, and the one that must be met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nupi.violations.dense import as_violation
from nupi.violations.kind import Violation

if TYPE_CHECKING:
    import torch

    from nupi.violations.kind import Move, Reduce
    from nupi.violations.target import Target


@dataclass(frozen=True, eq=False)
class Measured(Violation):
    """A violation measured twice: `soft` is in the Lagrangian, `hard` moves the multipliers.

    The model needs a measure with a gradient, such as a mean of sigmoids. The limit is often on a measure without a
    gradient, such as a rate of decisions. Pass the same object to `lagrangian(loss, violations)` and to `ascend`:

        L(x, theta) = f(x) + theta . soft(x)        the model descends on this
        e_t         = hard(x_t)                     the dual optimizer gets this

    Args:
        soft: the differentiable violation for the model: a tensor or any kind of violation.
        hard: the violation that must be met, of the same group.

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
        """As for the soft measure, which is in the Lagrangian."""
        return as_violation("soft", self.soft).adds_up(reduce)

    def moving(self) -> Violation:
        """The hard measure; this is what processes join."""
        return as_violation("hard", self.hard).moving()
