"""The group of constraints that a violation belongs to, and what a step on it may write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.violations.kind import Move

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nupi.constraints import Constraint


class Written:
    """The tensors that a step may write to, and their storages (found once, on first use).

    Args:
        multipliers: all multipliers of the problem.
        dual: the optimizer that will move them, or None.
    """

    def __init__(self, multipliers: Mapping[str, torch.Tensor | None], dual: object = None) -> None:
        self._multipliers, self._dual = multipliers, dual
        self._storages: set[int] | None = None

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shares its storage with a multiplier, or with state of the dual optimizer."""
        if self._storages is None:
            self._storages = storages(self._multipliers.values())
            for state in getattr(self._dual, "state", _NO_STATE).values():
                self._storages |= storages(state.values())
        return tensor.untyped_storage().data_ptr() in self._storages


_NO_STATE: dict[object, dict[str, object]] = {}


def storages(held: Iterable[object]) -> set[int]:
    """The storages of tensors, also of tensors in nested lists and dictionaries.

    Sparse tensors are left out: no step writes to them.
    """
    found = set()
    for each in held:
        if isinstance(each, torch.Tensor):
            if not each.is_sparse:
                found.add(each.untyped_storage().data_ptr())
        elif isinstance(each, (list, tuple, dict)):
            found |= storages(each.values() if isinstance(each, dict) else each)
    return found


class Target(NamedTuple):
    """The group of constraints that a violation belongs to; the Lagrangian passes it to `term` and `error`.

    Attributes:
        name: the name of the group.
        constraint: its kind, such as a `nupi.Inequality`.
        multiplier: its multipliers.
        written: the tensors that the next step may write to.
        penalty: the penalty of the augmented Lagrangian, or None.

    Example:
        >>> import nupi
        >>> from nupi.violations import Dense
        >>> theta = torch.tensor([2.0])
        >>> target = Target("rate", nupi.Inequality(), theta, Written({"rate": theta}))
        >>> Dense(torch.tensor([0.5])).term(target)  # theta c
        tensor(1.)
        >>> target.move(torch.tensor([0.5])).error
        tensor([0.5000])
    """

    name: str
    constraint: Constraint
    multiplier: torch.Tensor
    written: Written
    penalty: float | None = None

    def move(
        self,
        error: torch.Tensor,
        rows: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        partial: bool = False,
        fresh: bool = False,
    ) -> Move:
        """The move of this group by an error, in the multipliers' dtype.

        If the error shares its storage with a multiplier or with state of the dual optimizer, it is copied: otherwise
        it would change while it is read. `fresh` says that it was just computed, so that no copy is needed.
        """
        if error.dtype != self.multiplier.dtype:
            error = error.to(self.multiplier.dtype)
        # A compiled step copies every error before it writes.
        elif not fresh and not torch.compiler.is_compiling() and self.written.shares(error):
            error = error.clone()
        return Move(self.name, self.multiplier, error, self.constraint.bounds, rows, mask, partial)
