"""A constrained problem, given as functions of one point and checked before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from nupi.constraints import Constraint, Equality, Inequality

if TYPE_CHECKING:
    from nupi.constraints import Bounds

Point: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
Function: TypeAlias = Callable[[Any], torch.Tensor]
Constraints: TypeAlias = "Function | Mapping[str, Function] | None"
Kinds: TypeAlias = "Mapping[str, tuple[Constraint, Function]] | None"

ONLY = "x"  # the name of a point that is a single tensor


@dataclass(frozen=True)
class Group:
    """The constraints that one function returns, and their kind."""

    name: str
    constraint: Constraint
    function: Function

    @property
    def label(self) -> str:
        """The group's name in errors."""
        return f"{self.constraint.kind.split()[-1]} {self.name!r}"

    @property
    def size(self) -> int:
        """The number of multipliers of the group."""
        return self.constraint.multiplier_shape.numel()


class Segment(NamedTuple):
    """Consecutive multipliers with the same bounds."""

    bounds: Bounds | None
    start: int
    stop: int


class Problem:
    """The problem: minimize f(x) subject to constraints, from the starting point x0.

    Inside, a point is always a dict of tensors, and the errors of all groups are one flat vector.

    Args:
        objective: x to a scalar tensor.
        x0: a floating-point tensor, or a dict of them; it is copied, never written to.
        inequality: x to a tensor whose entries must be <= 0, or a dict of such functions by name.
        equality: x to a tensor whose entries must be 0, or a dict of such functions by name.
        constraints: any kind of constraint with its function of x, by name.
        upper: the largest multiplier of `inequality`, or None.
    """

    def __init__(
        self,
        objective: Function,
        x0: Point,
        inequality: Constraints = None,
        equality: Constraints = None,
        constraints: Kinds = None,
        *,
        upper: float | None = None,
    ) -> None:
        if not callable(objective):
            raise TypeError(f"objective must be a function of x, but a {type(objective).__name__} came")
        self.objective = objective
        self.single = isinstance(x0, torch.Tensor)
        self.start = _checked_start(x0)
        first = next(iter(self.start.values()))
        self.dtype, self.device = first.dtype, first.device

        probe = {name: leaf.clone().requires_grad_() for name, leaf in self.start.items()}
        _check_value("objective", objective(self.point(probe)), first, scalar=True)
        groups: dict[str, Group] = {}
        for kind, name, function, given in _listed(inequality, equality, constraints):
            if name in groups:
                other = groups[name].constraint.kind
                raise ValueError(f"{name!r} names both {other} and another {kind}; rename one of them")
            label = f"{kind} {name!r}"
            value = function(self.point(probe))
            _check_value(label, value, first, scalar=False)
            if not value.requires_grad:
                raise ValueError(
                    f"{label} does not depend on x for autograd, so no multiplier can enforce "
                    "it; compute it from x with torch operations, without detach() or no_grad()"
                )
            shape = tuple(value.shape)
            if given is None:
                given = Inequality(shape, upper=upper) if kind == "inequality" else Equality(shape)
            elif given.shape != value.shape:
                raise ValueError(
                    f"{label} returned shape {shape}, but its constraint is {given!r}; "
                    f"make it {type(given).__name__}({shape}, ...)"
                )
            groups[name] = Group(name, given, function)
        if not groups:
            raise ValueError(
                "there is no constraint: pass inequality=, equality=, constraints= or several of them"
            )
        self.groups = tuple(groups.values())
        self.size = sum(group.size for group in self.groups)

    def segments(self, *, restart: bool) -> list[Segment]:
        """The multipliers in segments of equal bounds. `restart` adds restarts to all inequalities."""
        found: list[Segment] = []
        start = 0
        for group in self.groups:
            bounds, stop = group.constraint.bounds, start + group.size
            if restart and isinstance(group.constraint, Inequality):
                bounds = group.constraint.bounds._replace(restart=True)
            if found and found[-1].bounds == bounds:
                found[-1] = Segment(bounds, found[-1].start, stop)
            else:
                found.append(Segment(bounds, start, stop))
            start = stop
        return found

    def multipliers(self) -> torch.Tensor:
        """The starting values of the multipliers, as one flat vector."""
        starts = [
            group.constraint.init.to(self.device, self.dtype)
            .expand(group.constraint.multiplier_shape)
            .reshape(-1)
            for group in self.groups
        ]
        return torch.cat(starts)

    def weights(
        self, theta: torch.Tensor, e: torch.Tensor, penalty: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weights of the errors' gradients: theta, plus a term with a penalty. All are (size, settings).

        Args:
            theta: the multipliers.
            e: the errors.
            penalty: the penalty of each multiplier and setting, 0 for none; None if no setting has any.
        """
        if penalty is None:
            return theta
        sizes = [group.size for group in self.groups]
        parts = zip(self.groups, theta.split(sizes), e.split(sizes), penalty.split(sizes), strict=True)
        return torch.cat([group.constraint.weights(*each) for group, *each in parts])

    def point(self, leaves: dict[str, torch.Tensor]) -> Point:
        """The argument of the user's functions: the tensor if x0 was one, else the dict."""
        return leaves[ONLY] if self.single else leaves

    def value(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """f(x)."""
        return self.objective(self.point(leaves))

    def violations(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """The errors of all groups, as one flat vector."""
        parts = [group.constraint.errors(group.function(self.point(leaves))) for group in self.groups]
        # A reshape that changes nothing would cost time at every step of a sweep.
        flat = [part if part.dim() == 1 else part.reshape(-1) for part in parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def evaluate(self, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """f(x) and c(x) by name. Refuses a result that is not a tensor, or not of the same shape as at x0."""
        value = self.value(leaves)
        _check_same("objective", value, torch.Size(()))
        violations = {group.name: group.function(self.point(leaves)) for group in self.groups}
        for group in self.groups:
            _check_same(group.label, violations[group.name], group.constraint.shape)
        return value, violations

    def by_name(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor (..., size) split into its groups, each (..., *the shape of its multipliers)."""
        parts = torch.split_with_sizes(flat, [group.size for group in self.groups], dim=-1)
        lead = flat.shape[:-1]
        return {
            group.name: part.reshape((*lead, *group.constraint.multiplier_shape))
            for group, part in zip(self.groups, parts, strict=True)
        }


def _checked_start(x0: Point) -> dict[str, torch.Tensor]:
    if isinstance(x0, torch.Tensor):
        leaves = {ONLY: x0}
    elif isinstance(x0, dict) and x0 and all(isinstance(leaf, torch.Tensor) for leaf in x0.values()):
        leaves = x0
    else:
        raise TypeError(f"x0 must be a tensor or a dict of tensors, but {x0!r} came; wrap it in torch.tensor")
    first = next(iter(leaves.values()))
    for name, leaf in leaves.items():
        label = "x0" if leaves is not x0 else f"x0[{name!r}]"
        if not isinstance(name, str):
            raise TypeError(f"{label}: the names in x0 must be strings, but {name!r} came; use {str(name)!r}")
        if leaf.numel() == 0:
            raise ValueError(
                f"{label} is empty, shape {tuple(leaf.shape)}: there is nothing to optimize; leave it out"
            )
        if not leaf.is_floating_point():
            raise TypeError(f"{label} is {leaf.dtype}, but gradients need floating point; add .double()")
        if leaf.dtype.itemsize < torch.float32.itemsize:
            raise TypeError(f"{label} is {leaf.dtype}, too coarse for multipliers to settle; add .float()")
        if leaf.dtype != first.dtype or leaf.device != first.device:
            raise ValueError(
                f"{label} is {leaf.dtype} on {leaf.device}, but the first entry of x0 is {first.dtype} on "
                f"{first.device}; bring them together with .to(...)"
            )
        if not bool(torch.isfinite(leaf).all()):
            raise ValueError(f"{label} holds inf or nan; start from a finite point")
    return {name: leaf.detach().clone() for name, leaf in leaves.items()}


def _listed(
    inequality: Constraints, equality: Constraints, constraints: Kinds
) -> list[tuple[str, str, Function, Constraint | None]]:
    """Every constraint given: its kind in words, its name, its function, and its `Constraint` if that was given."""
    listed: list[tuple[str, str, Function, Constraint | None]] = []
    for kind, functions in (("inequality", inequality), ("equality", equality)):
        if functions is None:
            continue
        by_name = dict(functions) if isinstance(functions, Mapping) else {kind: functions}
        for name, function in by_name.items():
            if not callable(function) or not isinstance(name, str):
                raise TypeError(
                    f"{kind} must be a function of x or a dict of functions by name, "
                    f"but {name!r} came with a {type(function).__name__}"
                )
            listed.append((kind, name, function, None))
    for name, pair in (constraints or {}).items():
        constraint, function = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(constraint, Constraint) or not callable(function) or not isinstance(name, str):
            raise TypeError(
                "constraints must map names to pairs of a constraint and its function of x, as in "
                f"{{'gap': (nupi.Band(3, tolerance=0.1), gap)}}, but {name!r} came with {pair!r}"
            )
        listed.append((constraint.kind.split()[-1], name, function, constraint))
    return listed


def _check_value(label: str, value: object, x: torch.Tensor, *, scalar: bool) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{label} must return a tensor, but a {type(value).__name__} came back at x0")
    if scalar and value.dim() != 0:
        raise ValueError(
            f"{label} must return a scalar, but shape {tuple(value.shape)} came back; add .sum()"
        )
    if value.numel() == 0:
        raise ValueError(f"{label} returned an empty tensor at x0: there is nothing to constrain")
    if value.dtype != x.dtype or value.device != x.device:
        raise ValueError(
            f"{label} returned {value.dtype} on {value.device}, but x0 is {x.dtype} on {x.device}; "
            "bring x0 and the data of the problem together with .to(...)"
        )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{label} is not finite at x0; start from a point where it is defined")


def _check_same(label: str, value: object, shape: torch.Size) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{label} returned a tensor at x0, but a {type(value).__name__} later; "
            "return a tensor computed from x on every path"
        )
    if value.shape != shape:
        raise ValueError(
            f"{label} returned shape {tuple(shape)} at x0, but {tuple(value.shape)} later; "
            "return the same shape on every path"
        )
