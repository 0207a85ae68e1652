"""Violations of a whole group: a tensor with one number for each of its constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nupi.violations.kind import Parts, Violation
from nupi.violations.values import check_values, exact, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.constraints import Constraint
    from nupi.violations.kind import Move, Reduce
    from nupi.violations.target import Target


class Dense(Violation):
    """A tensor with one violation for each constraint of a group; a plain tensor is wrapped in it.

    It is c in L(x, theta) = f(x) + sum of theta_i c_i. Your own kind of violation can make a `Dense`, and use its
    `term` and `error`.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"rate": nupi.Inequality(2)})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> lagrangian.ascend(dual, {"rate": Dense(torch.tensor([0.5, -0.5]))})
        >>> lagrangian.multipliers["rate"]
        tensor([0.0500, 0.0000])
    """

    label: ClassVar[str] = "a tensor"

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def term(self, target: Target) -> torch.Tensor:
        """The term theta . c(x), or its augmented form."""
        return target.constraint.term(
            target.multiplier, target.constraint.errors(self.checked(target)), target.penalty
        )

    def error(self, target: Target) -> Move:
        """The violation itself."""
        values = self.checked(target)
        error = target.constraint.errors(values.detach())
        return target.move(error, fresh=values.requires_grad and not values.is_leaf)

    def measured(self, constraint: Constraint) -> torch.Tensor:  # noqa: ARG002
        """The violations of the whole group."""
        return self.values.detach()

    def adds_up(self, reduce: Reduce) -> bool:
        """Decided by `reduce`."""
        return reduce == "sum"

    def detached(self) -> Dense:
        """The values without their graph."""
        return Dense(self.values.detach())

    @classmethod
    def average(cls, several: Sequence[Dense], batches: int, constraint: Constraint | None) -> Dense:  # noqa: ARG003
        """The mean over the micro-batches that had it."""
        return Dense(torch.stack([wide(each.values) for each in several]).mean(0))

    def parts(self, target: Target) -> Parts:
        """The values."""
        return Parts(exact(self.checked(target)))

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move:
        """The sum or the mean over the processes that had this violation."""
        return target.move(
            target.constraint.errors(total.values / ranks if reduce == "mean" else total.values)
        )

    def checked(self, target: Target) -> torch.Tensor:
        """The values, refused unless they have the group's shape; a scalar may stand for a single constraint."""
        values, shape = self.values, target.constraint.shape
        if values.layout != torch.strided:
            raise TypeError(
                f"the violation of {target.name!r} is a sparse tensor; give its parts as Indexed(values, indices)"
            )
        if values.dtype != target.multiplier.dtype or values.device != target.multiplier.device:
            check_values(target, values)
        if values.shape == shape:
            return values
        if values.dim() == 0 and shape.numel() == 1:
            return values.reshape(shape)
        raise ValueError(
            f"the violation of {target.name!r} has shape {tuple(values.shape)}, but its group has shape "
            f"{tuple(shape)}; {target.constraint.shapes}"
        )


def as_violation(name: str, given: Any) -> Violation:
    """The violation itself, or a plain tensor wrapped in `Dense`.

    Example:
        >>> type(as_violation("rate", torch.tensor([0.5]))).__name__
        'Dense'
    """
    if isinstance(given, torch.Tensor):
        return Dense(given)
    if isinstance(given, Violation):
        return given
    fix = "give the tensor itself, without .item() or .numpy(), so that gradients reach the model"
    if callable(given):
        fix = "call it, and give the tensor that it returns"
    raise TypeError(
        f"the violation of {name!r} must be a tensor, Indexed, Averaged or Measured, but it is a "
        f"{type(given).__name__}; {fix}"
    )
