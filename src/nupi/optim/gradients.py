"""Errors given as gradients, for `dual.step()`; and lists of tensors that equal steps share."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from nupi.optim.update import Work

if TYPE_CHECKING:
    from nupi.optim.base import DualOptimizer

_KIND = attrgetter("dtype", "layout", "device")
_PLAIN = {torch.Tensor}


def from_gradients(dual: DualOptimizer, group: dict[str, Any]) -> list[Work]:
    """The parameters of a param group that will move: all that have a gradient."""
    works = []
    for param in group["params"]:
        error = param.grad
        if error is None:
            continue
        if not group["maximize"]:
            error = -error
        bounds = dual._bounds.get(id(param))
        if not error.is_sparse:
            works.append(Work(group, param, error, bounds))
            continue
        error = error.coalesce()
        index, leading = error.indices(), error.sparse_dim()
        rows = index[0]
        for dimension in range(1, leading):
            rows = rows * error.shape[dimension] + index[dimension]
        works.append(Work(group, param, error.values(), bounds, rows, leading))
    return works


class Lists:
    """All parameters of an optimizer and their state, as lists for kernels that move many tensors in one call.

    One step makes them, and later steps use them again if nothing has changed. This is checked for all tensors at once,
    because one check for each tensor would take longer than the arithmetic (`python -m benchmarks groups` shows it).
    """

    __slots__ = ("_batches", "_gains_seen", "_held", "_ids", "_kept", "_kinds", "_values")

    def __init__(self, dual: DualOptimizer, works: list[Work]) -> None:
        self._held, self._gains_seen = [work.param for work in works], dual.gains_seen
        self._kinds = [*map(_KIND, self._held)]
        self._ids = [*map(id, self._held)]
        self._kept = [*dual.state.values()]
        self._values = _ids_of_state(dual)
        number = {param: i for i, param in enumerate(self._ids)}
        ready = [(work, dual.state.get(work.param) or {}, False) for work in works]
        self._batches = [
            (batch, [number[id(work.param)] for work in batch.works]) for batch in dual.batches(ready)
        ]

    @classmethod
    def of(cls, dual: DualOptimizer, works: list[Work]) -> Lists | None:
        """The lists of a step that was just taken; None if such a step cannot use whole lists."""
        if len(works) < 2 or not all(map(dual._batches, dual.param_groups)):
            return None
        for work in works:
            kept = dual.state.get(work.param) or {}
            if work.rows is not None or not dual.repeats(work.group, work.param, kept):
                return None
        return cls(dual, works)

    def step(self, dual: DualOptimizer) -> bool:
        """Take the same kind of step again. Returns False and changes nothing if the step would be of another kind."""
        held = [param for group in dual.param_groups for param in group["params"]]
        errors = [param.grad for param in held]
        if (
            dual._bounds
            or dual.gains_seen != self._gains_seen
            or [*map(id, held)] != self._ids
            or {*map(type, errors)} != _PLAIN
            or [*map(_KIND, held)] != self._kinds
            or [*map(_KIND, errors)] != self._kinds
            or _ids_of_state(dual) != self._values
            or not all(group["maximize"] for group in dual.param_groups)
        ):
            return False
        for batch, which in self._batches:
            group = batch.works[0].group
            e: Any = [errors[i] for i in which]
            dual.move(batch.theta, batch.state, e, dual.scaled_gains(group), group, None, first=False)
        return True


def _ids_of_state(dual: DualOptimizer) -> list[int]:
    """The ids of all state tensors, by parameter: if two lists are equal, no tensor was replaced."""
    state = dual.state
    return [
        *map(id, state),
        *map(id, state.values()),
        *(id(value) for kept in state.values() for value in kept.values()),
    ]
