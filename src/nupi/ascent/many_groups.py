"""The fast path for a step over many small groups: their numbers are joined to one vector.

A `foreach` kernel over a hundred small tensors still pays for each of them, in each of the ten operations of a step.
Here the numbers are joined, moved as one tensor, and written back in one call. They are written only when all are
computed, so there is nothing to undo. `python -m benchmarks groups` measures the time this saves.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from nupi.ascent.repeat import Place, Repeat
from nupi.ascent.step import length
from nupi.constraints import Constraint
from nupi.optim.base import SAFE, DualOptimizer
from nupi.violations import Move

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nupi.optim.update import Batch

MANY = 8  # with this many groups or more, joining them is faster
_SMALL = 4096  # the largest mean number of constraints in a group; larger groups are not joined

_KIND = attrgetter("dtype", "layout", "device")
_SHAPE, _BOUNDS, _REQUIRES_GRAD = map(attrgetter, ("shape", "bounds", "requires_grad"))
_POINTER = torch.Tensor.data_ptr
_PLAIN = {torch.Tensor}


class Vector:
    """Groups that move by the same gains, with memory for their numbers as one vector."""

    __slots__ = ("batch", "first", "last", "parts", "state", "tensors", "theta", "wholes")

    def __init__(self, batch: Batch, first: int) -> None:
        assert isinstance(batch.theta, list)
        sizes = [theta.numel() for theta in batch.theta]
        self.batch, self.first, self.last = batch, first, first + sum(sizes)
        self.tensors: list[torch.Tensor] = []  # the tensors that a step writes to,
        self.parts: list[torch.Tensor] = []  # and the parts of the vector with their new numbers
        self.wholes: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        with torch.inference_mode(False):
            self.theta = self._joined(batch.theta, sizes)
            self.state: Any = {slot: self._joined(value, sizes) for slot, value in batch.state.items()}

    def _joined(self, tensors: Any, sizes: list[int]) -> torch.Tensor:
        whole = torch.empty(sum(sizes), dtype=tensors[0].dtype)
        for tensor, part in zip(tensors, whole.split(sizes), strict=True):
            self.tensors.append(tensor)
            self.parts.append(part.view(tensor.shape))
        self.wholes.append((whole, [tensor.view(-1) for tensor in tensors]))
        return whole

    def compute(self, dual: DualOptimizer, errors: torch.Tensor) -> None:
        """Compute a step by the errors of all groups, without writing it back."""
        for whole, flat in self.wholes:
            torch.cat(flat, out=whole)
        group, bounds = self.batch.works[0].group, self.batch.works[0].bounds
        gains, own = dual.scaled_gains(group), errors[self.first : self.last]
        dual.move(self.theta, self.state, own, gains, group, bounds, first=False)


class ManyGroups(Repeat):
    """The last step over many small groups of a dual optimizer, ready to be repeated. Made by `expect`."""

    __slots__ = (
        "_as_found",
        "_constraints",
        "_kinds",
        "_names",
        "_shapes",
        "_thetas",
        "_vectors",
        "_written",
    )

    def __init__(self, dual: DualOptimizer, places: list[Place], shapes: Mapping[str, torch.Size]) -> None:
        super().__init__(dual, places)
        first, self._vectors = 0, []
        for batch, _ in self._batches:
            self._vectors.append(Vector(batch, first))
            first = self._vectors[-1].last
        # In the order of the vector.
        self._places = places = [places[i] for _, which in self._batches for i in which]
        self._names = [place.name for place in places]
        self._thetas = [place.theta for place in places]
        self._constraints = [place.constraint for place in places]
        self._kinds = [*map(_KIND, self._thetas)]
        self._shapes = [shapes[name] for name in self._names]
        self._written = (
            [tensor for vector in self._vectors for tensor in vector.tensors],
            [part for vector in self._vectors for part in vector.parts],
        )
        self._as_found = self._look()

    @classmethod
    def serves(cls, repeat: Repeat, violations: Mapping[str, Any]) -> bool:
        """Whether a step can be taken in this way, and faster."""
        dual, places = repeat._dual, repeat._places
        return (
            len(places) >= MANY
            and sum(place.theta.numel() for place in places) <= _SMALL * len(places)
            and getattr(dual.update, "pointwise", False)
            and not dual.writes_groups
            and all(isinstance(batch.theta, list) for batch, _ in repeat._batches)
            and all(
                type(violations[place.name]) is torch.Tensor
                and place.theta.is_contiguous()
                and place.theta.shape == place.shape
                and getattr(place.constraint.errors, "__func__", None) is Constraint.errors
                and all(
                    value.dtype == place.dtype and value.is_contiguous() for value in place.state.values()
                )
                for place in places
            )
        )

    def take(
        self,
        dual: torch.optim.Optimizer,
        multipliers: Mapping[str, torch.Tensor | None],
        constraints: Mapping[str, Constraint],
        violations: Mapping[str, Any],
    ) -> list[torch.Tensor] | None:
        """Repeat the step, and return all errors as one; None, with nothing changed, if it is not the same step."""
        ours, names = self._dual, self._names
        if dual is not ours or not isinstance(violations, dict) or len(violations) != len(names):
            return None
        given: list[Any] = [*map(violations.get, names)]
        if (
            ours.watched
            or {*map(type, given)} != _PLAIN
            or [*map(_KIND, given)] != self._kinds
            or [*map(_SHAPE, given)] != self._shapes
            or [*map(id, map(multipliers.get, names))] != [*map(id, self._thetas)]
            or [*map(id, map(constraints.get, names))] != [*map(id, self._constraints)]
            or self._look() != self._as_found
        ):
            return None
        ours.check_new_gains()
        if ours.gains_seen != self._gains_seen or ours.may_overflow:
            return None
        with torch.set_grad_enabled(False):
            errors = [torch.cat([each if each.dim() == 1 else each.reshape(-1) for each in given])]
            if not length(errors) <= SAFE:
                return None
            self._move(errors)
        return errors

    def _look(self) -> tuple[object, ...]:
        """All that must be unchanged to repeat the step: pointers, bounds, param groups and state."""
        dual, thetas = self._dual, self._thetas
        states = [dual.state.get(theta) or {} for theta in thetas]
        values = [value for state in states for value in state.values()]
        return (
            [*map(_POINTER, thetas)],
            any(map(_REQUIRES_GRAD, thetas)),
            [*map(_BOUNDS, self._constraints)],
            [(id(group), bool(group["maximize"])) for group in dual.param_groups],
            [*map(id, values)],
            [*map(_POINTER, values)],
        )

    def _move(self, errors: list[torch.Tensor]) -> None:
        """Compute all new numbers, then write them back in one call."""
        for vector in self._vectors:
            vector.compute(self._dual, errors[0])
        torch._foreach_copy_(*self._written)
        self._dual._opt_called = True  # type: ignore[attr-defined] # so that a scheduler knows of the step

    def moves(self, errors: list[torch.Tensor]) -> list[Move]:
        """The moves of the step, for listeners."""
        parts = errors[0].split([theta.numel() for theta in self._thetas])
        return [
            Move(place.name, place.theta, part.view(place.theta.shape), place.bounds)
            for place, part in zip(self._places, parts, strict=True)
        ]


def expect(
    dual: torch.optim.Optimizer,
    moves: Sequence[Move],
    constraints: Mapping[str, Constraint],
    violations: Mapping[str, Any],
) -> Repeat | None:
    """Prepare to repeat the step that was just taken over whole groups; None if it cannot be repeated."""
    repeat = Repeat.of(dual, moves, constraints)
    if repeat is None or not ManyGroups.serves(repeat, violations):
        return repeat
    shapes = {name: violation.shape for name, violation in violations.items()}
    return ManyGroups(repeat._dual, repeat._places, shapes)
