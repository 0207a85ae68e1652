"""What a constraint is: a group of multipliers with a sign rule, and a violation seen in whole or in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

Size: TypeAlias = "int | Sequence[int]"


class Constraint:
    """A group of constraints of one kind. Use `Equality` or `Inequality`.

    Args:
        size: how many constraints the group has: a number, or the shape of the tensor of violations.
        init: where the multipliers start: a number, or a tensor of the group's shape.
    """

    _device: torch.device | None = None

    def __init__(self, size: Size = 1, *, init: float | torch.Tensor = 0.0) -> None:
        self.shape = _checked_shape(size)
        self.init = _checked_init(init, self.shape)
        # A tensor says where the multipliers are to be; a number leaves it to torch, as a module's weights are.
        self._device = init.device if isinstance(init, torch.Tensor) else None

    def start(self) -> torch.Tensor:
        """A new tensor of starting multipliers, float32 or wider."""
        return torch.empty(self.shape, dtype=self.init.dtype, device=self._device).copy_(self.init)

    def __repr__(self) -> str:
        size = self.shape[0] if len(self.shape) == 1 else tuple(self.shape)
        return f"{type(self).__name__}({size})"


class Equality(Constraint):
    """Constraints h(x) = 0, with multipliers of either sign.

    Example:
        >>> Equality(10)
        Equality(10)
    """


class Inequality(Constraint):
    """Constraints g(x) <= 0, with multipliers that are projected to >= 0.

    Args:
        size: how many constraints the group has: a number, or the shape of the tensor of violations.
        init: where the multipliers start, >= 0.
        restart: whether a multiplier goes back to 0 whenever its constraint is strictly satisfied (the dual
            restarts of Gallego-Posada et al., 2022). It ends overshoot at once, but needs exact violations
            and cannot hold a multiplier that should settle above 0.
    """

    def __init__(self, size: Size = 1, *, init: float | torch.Tensor = 0.0, restart: bool = False) -> None:
        super().__init__(size, init=init)
        if not self.init.is_meta and bool((self.init < 0).any()):
            raise ValueError(
                f"init={init!r} is negative, but the multiplier of an inequality is >= 0; "
                "start it at 0 or above, or use Equality for a constraint of both signs"
            )
        self.restart = restart

    def __repr__(self) -> str:
        plain = super().__repr__()
        return f"{plain[:-1]}, restart=True)" if self.restart else plain


@dataclass(frozen=True, eq=False)
class Indexed:
    """A violation seen for some of a group's constraints only; its cost is the batch's, never the group's.

    Args:
        values: the violations of those constraints: one each, shaped like `group[indices]`.
        indices: which constraints they are: a 1-D integer tensor. An index that comes twice counts twice, as
            it does in the gradient of the Lagrangian.

    Example:
        >>> Indexed(torch.tensor([0.5, -0.1]), torch.tensor([7, 2]))
        Indexed(2 values at [7, 2])
    """

    values: torch.Tensor
    indices: torch.Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.values, torch.Tensor) or not isinstance(self.indices, torch.Tensor):
            raise TypeError(
                f"Indexed takes two tensors, but values is a {type(self.values).__name__} and indices a "
                f"{type(self.indices).__name__}; wrap them in torch.tensor"
            )
        if self.indices.dtype == torch.bool:
            raise TypeError(
                "indices is a boolean mask; pass the positions instead: mask.nonzero().squeeze(1), "
                "with values[mask] if the values are of the whole group"
            )
        if self.indices.is_floating_point() or self.indices.is_complex():
            raise TypeError(f"indices must be integers, but they are {self.indices.dtype}; use .long()")
        if self.indices.dim() != 1 or self.values.dim() < 1 or len(self.values) != len(self.indices):
            raise ValueError(
                f"indices has shape {tuple(self.indices.shape)} and values {tuple(self.values.shape)}; "
                "there must be one row of values per index"
            )

    def __repr__(self) -> str:
        few = self.indices[:8].tolist()
        more = ", …" if len(self.indices) > len(few) else ""
        return f"Indexed({len(self.indices)} values at [{', '.join(map(str, few))}{more}])"


@dataclass(frozen=True, eq=False)
class Averaged:
    """A violation that is a mean, given as its parts: sums / counts, one count a row of the group.

    Parts of a batch, and ranks of a distributed run, see different numbers of things: means of their means would
    be wrong, while sums and counts add up. A constraint whose count is 0 was not seen: it is left alone, and
    whatever its sum holds does no harm.

    Args:
        sums: what the mean is taken over, summed, with the bound already taken off each: for the rate of a group
            to stay below 0.3, the sum of `prediction - 0.3`. Shaped like the group.
        counts: how many things each row of the group sums over: of shape (rows,), or one number for all.
            Weights that are no whole numbers serve too. No gradient flows into them.

    Example:
        >>> Averaged(sums=torch.tensor([1.5, 0.0]), counts=torch.tensor([3, 0]))
        Averaged(tensor([1.5000, 0.0000]) / tensor([3, 0]))
    """

    sums: torch.Tensor
    counts: torch.Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.sums, torch.Tensor) or not isinstance(self.counts, torch.Tensor):
            raise TypeError(
                f"Averaged takes two tensors, but sums is a {type(self.sums).__name__} and counts a "
                f"{type(self.counts).__name__}; wrap them in torch.tensor"
            )
        if self.counts.dim() and self.counts.shape != self.sums.shape[:1]:
            raise ValueError(
                f"counts has shape {tuple(self.counts.shape)} and sums {tuple(self.sums.shape)}; "
                "there must be one count per row of sums, or a single one for all"
            )

    def __repr__(self) -> str:
        return f"Averaged({self.sums.detach()} / {self.counts})"


def check_constraints(constraints: Mapping[str, Constraint]) -> None:
    """Refuse what is no problem: constraints must be groups by name."""
    if not isinstance(constraints, Mapping) or not constraints:
        raise TypeError(
            f"constraints must map at least one name to Equality or Inequality, but {constraints!r} came"
        )
    for name, constraint in constraints.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a constraint's name must be a string that is not empty, but {name!r} came")
        if not isinstance(constraint, Constraint):
            raise TypeError(f"constraint {name!r} must be an Equality or Inequality, but {constraint!r} came")


def _checked_shape(size: Size) -> torch.Size:
    try:
        sizes = tuple(map(index, size)) if isinstance(size, Iterable) else (index(size),)
    except TypeError:
        sizes = ()
        bad = True
    else:
        bad = isinstance(size, bool) or any(n < 1 for n in sizes)
    if bad:
        raise ValueError(f"size must be a positive number or a shape of positive numbers, but {size!r} came")
    return torch.Size(sizes)


def _checked_init(init: float | torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The start as a tensor, float32 or wider: of the group's shape, or a scalar that stands for all of it."""
    try:
        # A number is looked at on the host: the device that new tensors go to may be one without numbers.
        given = init if isinstance(init, torch.Tensor) else torch.as_tensor(init, device="cpu")
        start = given.detach().clone()
        start = start.to(torch.promote_types(start.dtype, torch.float32))
    except (TypeError, ValueError, RuntimeError):
        start = torch.zeros((), dtype=torch.complex64)
    if not start.is_floating_point():
        raise TypeError(f"init must be a number or a tensor of numbers, but {init!r} came")
    if start.dim() and start.shape != shape:
        raise ValueError(
            f"init has shape {tuple(start.shape)}, but the group has shape {tuple(shape)}; "
            "pass a number, or one start per constraint"
        )
    if not start.is_meta and not bool(torch.isfinite(start).all()):
        raise ValueError(f"init must be finite, but {init!r} came")
    return start if isinstance(init, torch.Tensor) else start.float()
