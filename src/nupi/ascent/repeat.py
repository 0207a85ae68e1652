"""The fast path for a step like the last one: it checks that nothing has changed, and repeats the step.

Most steps of a training are alike: the same dual optimizer, the same constraints, a tensor for each on the host.
`Repeat` keeps what such a step needs, and takes the next one if nothing has changed. Otherwise it returns None and
changes nothing, and `take_step` takes the step or raises. `python -m benchmarks step` measures the time this saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.ascent.snapshot import spare_for
from nupi.ascent.step import length
from nupi.optim.base import SAFE, DualOptimizer, Work
from nupi.violations import Move
from nupi.violations.target import storages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nupi.constraints import Constraint

_NO_STATE: dict[str, torch.Tensor] = {}
_FEW = 4  # up to this many tensors of state are compared one by one


class Place:
    """One group of multipliers, as the last step found it."""

    __slots__ = (
        "bounds",
        "constraint",
        "dtype",
        "group",
        "ids",
        "kept",
        "many",
        "name",
        "number",
        "pointer",
        "shape",
        "state",
        "theta",
    )

    def __init__(self, dual: DualOptimizer, number: int, constraint: Constraint, move: Move) -> None:
        self.name, self.theta, self.bounds = move.name, move.multiplier, move.bounds
        self.constraint, self.shape, self.dtype = constraint, constraint.shape, move.multiplier.dtype
        self.pointer = move.multiplier.data_ptr()
        self.number, self.group = number, dual.param_groups[number]
        self.state = dict(dual.state.get(move.multiplier, _NO_STATE))
        self.kept = [*self.state.values()]
        self.ids = [*map(id, self.kept)]
        self.many = len(self.kept) > _FEW and all(tensor.numel() > 1 for tensor in self.kept)

    def same(self, state: Iterable[torch.Tensor]) -> bool:
        """Whether these are the same tensor objects as in the state of the last step.

        `==` of lists compares identities first, five times as fast as building a list of ids. If two tensors with
        several elements are not the same object, torch raises.
        """
        try:
            return [*state] == self.kept
        except RuntimeError:
            return False

    def error(
        self,
        dual: DualOptimizer,
        multipliers: Mapping[str, torch.Tensor | None],
        constraints: Mapping[str, Constraint],
        given: Any,
    ) -> torch.Tensor | None:
        """The error for a violation; None if the violation, the multipliers or the state are other than before."""
        theta, constraint, group = self.theta, self.constraint, self.group
        if (
            type(given) is not torch.Tensor
            or given.dtype is not self.dtype
            or not given.is_cpu
            or given.layout is not torch.strided
            or multipliers.get(self.name) is not theta
            or theta.data_ptr() != self.pointer  # its data has been replaced
            or theta.requires_grad
            or constraints.get(self.name) is not constraint
            or constraint.bounds is not self.bounds
            or dual.param_groups[self.number] is not group
            or not group["maximize"]
            # The tensors are kept alive here, so that no other tensor can get the same id.
            or (
                not self.same(dual.state.get(theta, _NO_STATE).values())
                if self.many
                else [*map(id, dual.state.get(theta, _NO_STATE).values())] != self.ids
            )
        ):
            return None
        values = given.detach()
        if values.shape != self.shape:
            if values.dim() or self.shape.numel() != 1:
                return None
            values = values.reshape(self.shape)
        return constraint.errors(values)


class Repeat:
    """The last step of a dual optimizer over some constraints, ready to be repeated.

    Use `Repeat.of`, which checks that the step can be repeated.
    """

    __slots__ = ("_batches", "_copies", "_dual", "_gains_seen", "_moving", "_places", "_storages", "_undoing")

    def __init__(self, dual: DualOptimizer, places: list[Place]) -> None:
        self._dual, self._places, self._gains_seen = dual, places, dual.gains_seen
        self._storages = storages((place.theta, place.state) for place in places)
        ready = [
            (Work(place.group, place.theta, place.theta, place.bounds), place.state, False)
            for place in places
        ]
        number = {id(place.theta): i for i, place in enumerate(places)}
        self._batches = [
            (batch, [number[id(work.param)] for work in batch.works]) for batch in dual.batches(ready)
        ]
        self._moving = [
            (batch.theta, batch.state, which, batch.works[0].group, batch.works[0].bounds)
            for batch, which in self._batches
        ]
        self._copies: dict[int, torch.Tensor] = {}
        self._undoing: dict[frozenset[str], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    @classmethod
    def of(
        cls, dual: torch.optim.Optimizer, moves: Sequence[Move], constraints: Mapping[str, Constraint]
    ) -> Repeat | None:
        """Prepare to repeat the step that was just taken over whole groups; None if it cannot be repeated."""
        if not isinstance(dual, DualOptimizer) or dual.watched:
            return None
        numbers = {id(p): number for number, group in enumerate(dual.param_groups) for p in group["params"]}
        places = []
        for move in moves:
            if move.mask is not None or not move.multiplier.is_cpu:
                return None
            place = Place(dual, numbers[id(move.multiplier)], constraints[move.name], move)
            if not dual.repeats(place.group, place.theta, place.state):
                return None
            places.append(place)
        return cls(dual, places)

    def take(
        self,
        dual: torch.optim.Optimizer,
        multipliers: Mapping[str, torch.Tensor | None],
        constraints: Mapping[str, Constraint],
        violations: Mapping[str, Any],
    ) -> list[torch.Tensor] | None:
        """Repeat the step, and return its errors; None, with nothing changed, if it is not the same step.

        Args:
            dual: the optimizer.
            multipliers: all multipliers of the problem, by constraint name.
            constraints: all constraints of the problem.
            violations: constraint name to c(x).
        """
        ours = self._dual
        if (
            dual is not ours
            or not isinstance(violations, dict)
            or len(violations) != len(self._places)
            or ours.watched
        ):
            return None
        errors = []
        for place in self._places:
            given = violations.get(place.name)
            error = place.error(ours, multipliers, constraints, given)
            # An error has a graph if the constraint has parameters of its own.
            if error is None or error.requires_grad:
                return None
            # An error that shares memory with what the step writes to would change while it is read. `take_step` copies
            # it. A result of the model never shares this memory.
            if given.is_leaf and error.untyped_storage().data_ptr() in self._storages:  # type: ignore[union-attr]
                return None
            errors.append(error)
        ours.check_new_gains()
        if ours.gains_seen != self._gains_seen or ours.may_overflow:
            return None
        if not length(errors) <= SAFE:
            return None
        self._move(errors)
        return errors

    def moves(self, errors: list[torch.Tensor]) -> list[Move]:
        """The moves of the step, for listeners."""
        return [
            Move(place.name, place.theta, error, place.bounds)
            for place, error in zip(self._places, errors, strict=True)
        ]

    def _prepare_undoing(self, still: frozenset[str]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that a step may write to, and memory for their copies. The step does not write to `still`."""
        kept = [
            tensor
            for place in self._places
            for tensor in (place.theta, *(value for slot, value in place.state.items() if slot not in still))
        ]
        new = [tensor for tensor in kept if id(tensor) not in self._copies]
        self._copies.update(zip(map(id, new), spare_for(self._dual, new), strict=True))
        self._undoing[still] = kept, [self._copies[id(tensor)] for tensor in kept]
        return self._undoing[still]

    def _move(self, errors: list[torch.Tensor]) -> None:
        """Move by these errors; if anything raises, everything is as before."""
        dual = self._dual
        groups = [group.copy() for group in dual.param_groups] if dual.writes_groups else ()
        kept: list[torch.Tensor] = []
        copies: list[torch.Tensor] = []
        try:
            still = dual.begin_step(some_rows=False)
            written, spare = self._undoing.get(still) or self._prepare_undoing(still)
            torch._foreach_copy_(spare, written)
            # Only now, so that an interrupt before this cannot restore old copies.
            kept, copies = written, spare
            for theta, state, which, group, bounds in self._moving:
                e = [errors[i] for i in which] if isinstance(theta, list) else errors[which[0]]
                dual.move(theta, state, e, dual.scaled_gains(group), group, bounds, first=False)
        except BaseException:
            for tensor, copy in zip(kept, copies, strict=True):
                tensor.copy_(copy)
            for group, before in zip(dual.param_groups, groups, strict=False):
                group.update(before)
            raise
        dual._opt_called = True  # type: ignore[attr-defined] # so that a scheduler knows of the step
