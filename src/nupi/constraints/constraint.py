"""The base class of all kinds of constraints, and the checks of its size and its start."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.constraints.bounds import Bounds

Size: TypeAlias = "int | Sequence[int]"


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
