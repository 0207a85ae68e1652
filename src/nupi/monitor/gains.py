"""Read the gains of a dual optimizer, and what they mean for one constraint."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The keys of gains in param groups; values that are numbers or tensors are read.
FIELDS = ("lr", "ki", "kp", "kd", "nu", "momentum", "beta", "gamma", "weight_decay")

Value: TypeAlias = "float | torch.Tensor"


class Change(NamedTuple):
    """The gains of one param group (or of one constraint) from a step on."""

    step: int
    names: tuple[str, ...]
    kind: str
    gains: dict[str, Value]


class GainReader:
    """Records the gains of the optimizers it sees, whenever they change."""

    def __init__(self, multipliers: Mapping[str, torch.Tensor]) -> None:
        self._multipliers = multipliers
        self._known: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._getters: dict[tuple[int, int], Callable[[Any], tuple[Any, ...]]] = {}
        self.changes: list[Change] = []

    def look(self, step: int, dual: torch.optim.Optimizer) -> None:
        """Compare the gains with those of the last step. Takes a few hundred nanoseconds if nothing has changed."""
        for number, group in enumerate(dual.param_groups):
            key = (id(dual), number)
            getter = self._getters.get(key)
            if getter is None:
                getter = self._getters[key] = _getter(group)
            now = getter(group)
            try:
                same = now == self._known.get(key)  # a tensor is equal to itself
            except RuntimeError:  # == of two tensors with several elements is not one boolean
                same = False
            if same:
                continue
            self._known[key] = now
            self.changes.append(Change(step, self._names(group), type(dual).__name__, _numbers(group)))

    def ask(self, step: int, dual: torch.optim.Optimizer) -> None:
        """Read the gains that `SelfTuned` has found."""
        found = getattr(dual, "gains", None)
        if not callable(found):
            return
        by_id = {id(multiplier): name for name, multiplier in self._multipliers.items()}
        for key, gains in found().items():
            name = key if isinstance(key, str) else by_id.get(id(key))
            if name is not None:
                values = {k: v for k, v in gains.items() if isinstance(v, (int, float, torch.Tensor))}
                self.changes.append(Change(step, (name,), type(dual).__name__, values))

    def taken(self) -> list[Change]:
        """The changes since this was last called."""
        changes, self.changes = self.changes, []
        return changes

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        held = {id(param) for param in group["params"]}
        return tuple(name for name, multiplier in self._multipliers.items() if id(multiplier) in held)


def _getter(group: dict[str, Any]) -> Callable[[Any], tuple[Any, ...]]:
    # The first name twice, because itemgetter returns no tuple for a single name.
    fields = [field for field in FIELDS if field in group] or ["params"]
    return itemgetter(fields[0], *fields)


def _numbers(group: dict[str, Any]) -> dict[str, Value]:
    return {
        field: group[field]
        for field in FIELDS
        if isinstance(group.get(field), (int, float, torch.Tensor)) and not isinstance(group[field], bool)
    }


def as_set(gains: Mapping[str, float], kind: str) -> tuple[float, float, float, float]:
    """Return ki, kp, nu, and the `lr` that multiplies ki and kp. A gain that the optimizer does not have is nan.

    For gradient ascent (torch's SGD), ki is `lr`.
    """
    lr = gains.get("lr", 1.0)
    if "ki" in gains:
        return gains["ki"], gains.get("kp", 0.0), gains.get("nu", 0.0), lr
    if kind == "SGD" and not gains.get("momentum"):
        return lr, 0.0, 0.0, 1.0
    return math.nan, math.nan, math.nan, 1.0
