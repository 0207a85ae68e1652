"""Which model to ship: the best one that meets the constraints, or else the closest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi import files
from nupi.violations import as_violation

if TYPE_CHECKING:
    import os

    from nupi.constraints import Constraint
    from nupi.lagrangian import Lagrangian

Saves: TypeAlias = Any
"""Something with a state_dict, such as a model or an optimizer; or a mapping of names to such things."""


class Best:
    """Keep the best feasible model, by any metric.

    A model is feasible if no constraint is violated by more than the tolerance: g(x) <= tolerance for an inequality,
    |h(x)| <= tolerance for an equality. As long as no model is feasible, the model whose largest violation is smallest
    is kept, and `feasible` is 0. A constraint that was not measured (because no row counts for it) is not met.

    Args:
        lagrangian: the Lagrangian with the constraints.
        tolerance: the violation that you accept: a number, or one for each constraint name.
        higher_is_better: whether a larger metric is better (an accuracy) or a smaller one (a loss, an error).
        path: a file for the best model; by default it is kept in memory.

    Example:
        >>> import nupi
        >>> model, lagrangian = torch.nn.Linear(1, 1), nupi.Lagrangian({"rate": nupi.Inequality()})
        >>> best = Best(lagrangian, tolerance=0.01)
        >>> for error, violation in ((0.10, 0.2), (0.14, -0.1), (0.12, 0.005), (0.13, 0.0)):
        ...     _ = best.see(model, error, {"rate": torch.tensor(violation)})
        >>> best
        Best(3 of 4 feasible; kept: number 3, metric 0.12, largest violation 0.005)
        >>> best.restore(model)
    """

    def __init__(
        self,
        lagrangian: Lagrangian,
        tolerance: float | Mapping[str, float] = 0.0,
        *,
        higher_is_better: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.constraints: dict[str, Constraint] = dict(lagrangian.constraints)
        self.tolerance = tolerances(tolerance, self.constraints)
        self.higher_is_better = higher_is_better
        self.path = None if path is None else Path(path)
        self.seen = 0
        self.feasible = 0
        self.number: int | None = None
        self.metric = math.nan
        self.violation = math.inf
        self.notes: dict[str, Any] = {}
        self._kept: Any = None
        self._excess = math.inf  # by how much the kept model is beyond the tolerance

    @property
    def is_feasible(self) -> bool:
        """Whether the model that is kept meets the constraints."""
        return self.feasible > 0

    @torch.no_grad()
    def see(self, model: Saves, metric: float, violations: Mapping[str, Any], **notes: Any) -> bool:
        """Keep this model if it is the best so far. Returns whether it was kept.

        Args:
            model: what to keep: a module, or anything with a `state_dict`, or a mapping of names to such.
            metric: how good it is.
            violations: the violation of every constraint, as for `Lagrangian.ascend`; best measured on decisions.
            notes: anything to store with the model in `best.notes`, such as the epoch.

        Raises:
            ValueError: the metric or a violation is not finite, or a constraint is missing. Nothing has changed.
        """
        value = float(metric)
        if not math.isfinite(value):
            raise ValueError(f"metric={metric!r} is not finite; a model with it cannot be compared")
        if not isinstance(violations, Mapping):
            raise TypeError(
                f"violations must be a mapping of constraint names to tensors, but a {type(violations).__name__} came"
            )
        largest, excess = self._judge(violations)
        meets = excess <= 0
        kept = self._is_better(value, excess, meets=meets)
        if kept:
            self._keep(model)
            self.number, self.metric, self.violation, self._excess = self.seen + 1, value, largest, excess
            self.notes = dict(notes)
        self.seen += 1
        self.feasible += meets
        return kept

    def restore(self, model: Saves) -> None:
        """Load the kept model into `model`, which has the same form as in `see`."""
        if self.number is None:
            raise RuntimeError(
                "no model is kept: none was seen yet, or none had all of its constraints measured"
            )
        kept = self._kept if self.path is None else torch.load(self.path, weights_only=True)
        if isinstance(model, Mapping):
            for name, part in model.items():
                part.load_state_dict(kept[name])
        else:
            model.load_state_dict(kept)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs. With a `path`, the model stays in its file."""
        names = ("seen", "feasible", "number", "metric", "violation", "notes")
        return {name: getattr(self, name) for name in names} | {"excess": self._excess, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        missing = {"seen", "feasible", "number", "metric", "violation", "notes", "excess", "kept"} - set(
            state
        )
        if missing:
            raise ValueError(f"state lacks {', '.join(sorted(missing))}; it is not the state_dict of a Best")
        if self.path is not None and state["number"] is not None and not self.path.is_file():
            raise FileNotFoundError(
                f"path={str(self.path)!r} should hold the kept model, but there is no file"
            )
        if self.path is None and state["number"] is not None and state["kept"] is None:
            raise ValueError("state is of a Best that kept its model in a file; give this one its path")
        for name in ("seen", "feasible", "number", "metric", "violation", "notes"):
            setattr(self, name, deepcopy(state[name]))
        self._excess, self._kept = state["excess"], deepcopy(state["kept"])

    def __repr__(self) -> str:
        if self.number is None:
            return f"Best(0 of {self.seen} feasible; nothing kept)"
        what = "kept" if self.feasible else "the closest"
        return (
            f"Best({self.feasible} of {self.seen} feasible; {what}: number {self.number}, metric {self.metric:.4g}, "
            f"largest violation {self.violation:.4g})"
        )

    def _judge(self, violations: Mapping[str, Any]) -> tuple[float, float]:
        """The largest violation, and the largest violation minus its tolerance."""
        missing = [name for name in self.constraints if name not in violations]
        if missing:
            raise ValueError(
                f"violations lacks {', '.join(map(repr, missing))}; all constraints decide whether a model is feasible"
            )
        largest, excess = -math.inf, -math.inf
        for name, constraint in self.constraints.items():
            worst = largest_violation(name, constraint, violations[name])
            largest, excess = max(largest, worst), max(excess, worst - self.tolerance[name])
        return largest, excess

    def _is_better(self, metric: float, excess: float, *, meets: bool) -> bool:
        ahead = metric > self.metric if self.higher_is_better else metric < self.metric
        if self.number is None:
            return excess < math.inf
        if meets:
            return ahead or not self.feasible
        return not self.feasible and (excess < self._excess or (excess == self._excess and ahead))

    def _keep(self, model: Saves) -> None:
        whole = isinstance(model, Mapping)
        state = {name: part.state_dict() for name, part in model.items()} if whole else model.state_dict()
        if self.path is None:
            self._kept = _copied(state)
            return
        with files.replacing(self.path) as draft:
            torch.save(state, draft)


def largest_violation(name: str, constraint: Constraint, violation: Any) -> float:
    """The largest violation of a group; infinite if a part was not measured. Raises if a violation is not finite."""
    values = as_violation(name, violation).moving().measured(constraint)
    if values is None:
        return math.inf
    if not bool(values.isfinite().all()):
        raise ValueError(f"the violation of {name!r} is not finite; a model with it cannot be compared")
    return float(constraint.largest(values))


def tolerances(given: float | Mapping[str, float], names: Mapping[str, Any]) -> dict[str, float]:
    """A tolerance for each constraint; one number is used for all."""
    each = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if set(each) != set(names):
        raise ValueError(f"tolerance is given for {sorted(each)}, but the constraints are {sorted(names)}")
    for name, value in each.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"tolerance={value!r} of {name!r} must be a finite number, at least 0")
    return {name: float(value) for name, value in each.items()}


def _copied(state: Any) -> Any:
    """A copy that training does not write to."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    return deepcopy(state)
