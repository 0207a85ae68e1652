"""A constrained problem given as plain functions of one point, checked before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

Point: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
Function: TypeAlias = Callable[[Any], torch.Tensor]
Constraints: TypeAlias = "Function | Mapping[str, Function] | None"
Kind: TypeAlias = Literal["inequality", "equality"]

ONLY = "x"  # the name of a point that is a single tensor


@dataclass(frozen=True)
class Group:
    """Constraints that one function returns: c(x) <= 0 for an inequality, c(x) = 0 for an equality."""

    name: str
    kind: Kind
    function: Function
    shape: torch.Size

    @property
    def size(self) -> int:
        """How many constraints there are in the group."""
        return self.shape.numel()


class Problem:
    """minimize f(x) subject to c(x) <= 0 and h(x) = 0, from the starting point x0.

    Inside, a point is always a dict of tensors, and the violations of all groups are one flat vector with
    the inequalities first, so that the multipliers to project are its first `inequalities` entries.

    Args:
        objective: x to a scalar tensor.
        x0: a floating-point tensor, or a dict of them; it is copied, never written to.
        inequality: x to a tensor that is to be <= 0 everywhere, or a dict of such functions by name.
        equality: x to a tensor that is to be 0 everywhere, or a dict of such functions by name.
    """

    def __init__(
        self, objective: Function, x0: Point, inequality: Constraints = None, equality: Constraints = None
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
        named = [
            *(("inequality", *item) for item in _named("inequality", inequality).items()),
            *(("equality", *item) for item in _named("equality", equality).items()),
        ]
        if not named:
            raise ValueError("no constraint came: pass inequality=, equality= or both")
        groups: dict[str, Group] = {}
        for kind, name, function in named:
            if name in groups:
                raise ValueError(f"{name!r} names both an inequality and an equality; rename one of them")
            value = function(self.point(probe))
            _check_value(f"{kind} {name!r}", value, first, scalar=False)
            if not value.requires_grad:
                raise ValueError(
                    f"{kind} {name!r} does not depend on x as autograd sees it, so no multiplier can enforce "
                    "it; compute it from x with torch operations, without detach() or no_grad()"
                )
            groups[name] = Group(
                name, "inequality" if kind == "inequality" else "equality", function, value.shape
            )
        self.groups = tuple(groups.values())
        self.inequalities = sum(group.size for group in self.groups if group.kind == "inequality")
        self.size = sum(group.size for group in self.groups)

    def point(self, leaves: dict[str, torch.Tensor]) -> Point:
        """What the user's functions see: the tensor itself if x0 was one, else the dict."""
        return leaves[ONLY] if self.single else leaves

    def value(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """f(x)."""
        return self.objective(self.point(leaves))

    def violations(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """All of c(x), then all of h(x), as one flat vector."""
        parts = [group.function(self.point(leaves)) for group in self.groups]
        # A reshape that changes nothing would be replayed at every step of a sweep.
        flat = [part if part.dim() == 1 else part.reshape(-1) for part in parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def evaluate(self, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """f(x) and c(x) by name, refusing what a function did not return at x0: a number, another shape."""
        value = self.value(leaves)
        _check_same("objective", value, torch.Size(()))
        violations = {group.name: group.function(self.point(leaves)) for group in self.groups}
        for group in self.groups:
            _check_same(f"{group.kind} {group.name!r}", violations[group.name], group.shape)
        return value, violations

    def by_name(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor (..., size) split into its groups, each (..., *the shape its function returned)."""
        parts = torch.split_with_sizes(flat, [group.size for group in self.groups], dim=-1)
        lead = flat.shape[:-1]
        return {
            group.name: part.reshape((*lead, *group.shape))
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
                f"{label} is empty, shape {tuple(leaf.shape)}: there is nothing to move; leave it out"
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


def _named(kind: Kind, given: Constraints) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    if given is not None:
        functions = dict(given) if isinstance(given, Mapping) else {str(kind): given}
    for name, function in functions.items():
        if not callable(function) or not isinstance(name, str):
            raise TypeError(
                f"{kind} must be a function of x or a dict of functions by name, "
                f"but {name!r} came with a {type(function).__name__}"
            )
    return functions


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
