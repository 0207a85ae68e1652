"""Kinds of constraints. Each has its bounds, its projection, its term in the Lagrangian and its check of a checkpoint.

A kind defines three things: the shape of its multipliers, the errors that a violation gives to them, and their bounds.
Everything else follows from these three. A new kind is a subclass of `Constraint`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from types import MethodType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import torch

from nupi.rule import as_list, clamp_into_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.rule import Tensors

Size: TypeAlias = "int | Sequence[int]"


class Bounds(NamedTuple):
    """The interval in which multipliers must be. Dual optimizers, `ascend`, `minimize` and `sweep` project with it.

    After a step, theta = min(upper, max(lower, theta)).

    Attributes:
        lower: the smallest value, or None.
        upper: the largest value, or None.
        restart: whether a multiplier is set to `lower` when its error is negative.
        both: whether errors of both signs are violations, as for an equality. By default only errors above 0 are.

    Example:
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


class Constraint:
    """A group of constraints of one kind. Use `Equality`, `Inequality` or `Band`, or write your own subclass.

    A subclass says which errors e(c) a violation c gives to the multipliers (`errors`), and within which `bounds` the
    multipliers stay. The Lagrangian is then L(x, theta) = f(x) + sum of theta_i e_i.

    Args:
        size: how many constraints the group has: a number, or the shape of the tensor of violations.
        init: where the multipliers start: a number, or a tensor of their shape.

    Example:
        >>> import nupi
        >>> from nupi.constraints import Bounds, Constraint
        >>> class AtLeast(Constraint):
        ...     kind, bounds = "a lower limit", Bounds(lower=0.0)
        ...     def __init__(self, size=1, *, level, init=0.0):
        ...         self.level = level
        ...         super().__init__(size, init=init)
        ...     def errors(self, violation):
        ...         return self.level - violation  # above 0 where the constraint is violated
        >>> lagrangian = nupi.Lagrangian({"recall": AtLeast(level=0.9)})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> lagrangian.ascend(dual, {"recall": torch.tensor(0.7)})
        >>> lagrangian.multipliers["recall"]
        tensor([0.0200])
    """

    kind: ClassVar[str] = "a constraint"
    """What a checkpoint and an error call it."""

    bounds: Bounds | None = None
    """Where its multipliers stay; None means anywhere."""

    shapes: ClassVar[str] = "violations are never broadcast: give one per constraint, or Indexed"
    """What an error about the shape of a violation advises."""

    _device: torch.device | None = None

    def __init__(self, size: Size = 1, *, init: float | torch.Tensor = 0.0) -> None:
        self.shape = _checked_shape(size)
        self.init = _checked_init(init, self.multiplier_shape)
        # A tensor sets the device of the multipliers. With a number, torch's default device is used, as for a module.
        self._device = init.device if isinstance(init, torch.Tensor) else None
        if not self.init.is_meta and (problem := self.misfit(self.init)):
            raise ValueError(f"init={init!r} {problem}")

    @property
    def multiplier_shape(self) -> torch.Size:
        """The shape of the multipliers: that of the violations, unless a constraint has several multipliers."""
        return self.shape

    def start(self) -> torch.Tensor:
        """A new tensor with the initial multipliers, float32 or wider."""
        return torch.empty(self.multiplier_shape, dtype=self.init.dtype, device=self._device).copy_(self.init)

    def errors(self, violation: torch.Tensor) -> torch.Tensor:
        """The errors that move the multipliers: c(x), where c(x) <= 0 or c(x) = 0 must hold. Works on any rows."""
        return violation

    def term(self, theta: torch.Tensor, e: torch.Tensor, penalty: float | None = None) -> torch.Tensor:
        """What these multipliers and errors add to the Lagrangian, in float32 or wider even under autocast.

        Without a penalty: theta . e. With a penalty c: the augmented Lagrangian of Hestenes, Powell and Rockafellar,

            max over lambda within the bounds of  lambda e - (lambda - theta)^2 / (2 c)
        """
        if penalty is not None:
            moved = self.weights(theta, e, penalty)
            return (moved * e - (moved - theta).square() / (2 * penalty)).sum()
        if e.dim() == 1 and e.dtype == theta.dtype:
            return torch.dot(theta, e)
        return (theta * e).sum()

    def weights(
        self, theta: torch.Tensor, e: torch.Tensor, penalty: float | torch.Tensor | None = None
    ) -> torch.Tensor:
        """The factor of each error's gradient in the gradient of the Lagrangian.

        Without a penalty it is theta. With a penalty c it is theta + c e, clamped to the bounds: the maximum in `term`.
        """
        if penalty is None:
            return theta
        moved = theta + penalty * e
        return moved if self.bounds is None else moved.clamp(self.bounds.lower, self.bounds.upper)

    def infeasibility(self, e: torch.Tensor) -> torch.Tensor:
        """How far each constraint is from being met, from its error."""
        return e.abs() if self.bounds is None or self.bounds.both else e.clamp(min=0)

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of these violations; below 0 if each is met by a margin."""
        e = self.errors(values)
        return e.abs().max() if self.bounds is None or self.bounds.both else e.max()

    def slackness(self, theta: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """The residual of complementary slackness: a bounded multiplier is 0, or its constraint holds with equality."""
        free = self.bounds is None or self.bounds.both
        return torch.zeros_like(e) if free else (theta * e).abs()

    def misfit(self, theta: torch.Tensor) -> str | None:
        """If these values cannot be multipliers of this kind: a phrase with the reason and a remedy. Otherwise None."""
        if self.bounds is None:
            return None
        low, high = self.bounds.lower, self.bounds.upper
        if low is not None and bool((theta < low).any()):
            return (
                f"is negative, but the multiplier of {self.kind} is >= {low:g}; start it at {low:g} or above, or "
                "use Equality for a constraint of both signs"
            )
        if high is not None and bool((theta > high).any()):
            return f"is above upper={high:g}; start the multipliers at {high:g} or below"
        return None

    def __repr__(self) -> str:
        size = self.shape[0] if len(self.shape) == 1 else tuple(self.shape)
        return f"{type(self).__name__}({', '.join(map(str, (size, *self._options())))})"

    def _options(self) -> list[str]:
        """The options that the repr shows after the size. They must be the same on all ranks of a run."""
        return []


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
        self.bounds: Bounds = Bounds(0.0, _checked_positive("upper", upper), bool(restart))
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
        checked = _checked_positive("tolerance", tolerance)
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


def _remedy(came: object) -> str:
    """What to write in place of a class, of a method or of a constraint of `nupi.rates`."""
    if isinstance(came, (type, MethodType)):
        return f"; call it: {came.__name__}()"
    return "; give its .kind()" if hasattr(came, "kind") else ""


def check_constraints(constraints: Mapping[str, Constraint]) -> None:
    """Raise unless `constraints` is a mapping from names to groups of constraints."""
    if not isinstance(constraints, Mapping) or not constraints:
        raise TypeError(
            "constraints must map at least one name to an Equality, Inequality or Band, "
            f"but {constraints!r} came"
        )
    for name, constraint in constraints.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a constraint's name must be a string that is not empty, but {name!r} came")
        if not isinstance(constraint, Constraint):
            raise TypeError(
                f"constraint {name!r} must be an Equality, Inequality or Band, but {constraint!r} came"
                f"{_remedy(constraint)}"
            )


def checked_penalty(
    penalty: float | Mapping[str, float] | None, constraints: Mapping[str, Constraint]
) -> dict[str, float]:
    """The penalty of each constraint that has one."""
    if penalty is None:
        return {}
    given = penalty if isinstance(penalty, Mapping) else dict.fromkeys(constraints, penalty)
    unknown = [name for name in given if name not in constraints]
    if unknown:
        known = ", ".join(map(repr, constraints))
        raise ValueError(
            f"penalty names {unknown[0]!r}, which is not a constraint here; the constraints are {known}"
        )
    checked = {name: _checked_positive(f"penalty of {name!r}", value) for name, value in given.items()}
    return {name: value for name, value in checked.items() if value is not None}


def _checked_positive(name: str, value: float | None) -> float | None:
    """A number above 0 as a plain float, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a positive number, but {value!r} is a {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, but {value!r} came")
    return number


def _checked_shape(size: Size) -> torch.Size:
    try:
        sizes = tuple(map(index, size)) if isinstance(size, Iterable) else (index(size),)
    except TypeError:
        sizes = ()
        bad = True
    else:
        bad = isinstance(size, bool) or any(n < 1 for n in sizes)
    if bad:
        raise ValueError(
            f"size must be the number of constraints, an integer of at least 1, or a shape of such, but {size!r} came. "
            "A limit goes into the violation: rate - 0.05 for a rate of at most 0.05"
        )
    return torch.Size(sizes)


def _checked_init(init: float | torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The start as a tensor, float32 or wider: of the multipliers' shape, or one scalar for all of them."""
    try:
        # A number is checked on the host: the default device may be the meta device, whose tensors have no values.
        given = init if isinstance(init, torch.Tensor) else torch.as_tensor(init, device="cpu")
        start = given.detach().clone()
        start = start.to(torch.promote_types(start.dtype, torch.float32))
    except (TypeError, ValueError, RuntimeError, OverflowError):
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
