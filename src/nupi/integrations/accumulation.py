"""The violations of several micro-batches as one, for one `ascend` per optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.violations import as_violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.constraints import Constraint
    from nupi.violations import Violation


class Accumulator:
    """Adds up the violations of micro-batches, and gives their average.

    With k micro-batches the model descends on (1/k) * the sum of k Lagrangians, so the multipliers ascend on the same
    average. For tensors it is the mean over the micro-batches that had them. For `Averaged` violations it is all sums
    divided by all counts. For `Indexed` ones it is all rows, each divided by k. `Measured` uses its hard measure.
    """

    def __init__(self, constraints: Mapping[str, Constraint]) -> None:
        self._constraints = constraints
        self._kept: dict[str, list[Violation]] = {}
        self.batches = 0

    def add(self, violations: Mapping[str, Any]) -> None:
        """Add the violations of one micro-batch, without their graph."""
        for name, given in violations.items():
            self._kept.setdefault(name, []).append(as_violation(name, given).moving().detached())
        self.batches += 1

    def taken(self) -> dict[str, Violation]:
        """The average of the violations added since the last call."""
        kept, batches = self._kept, self.batches
        self._kept, self.batches = {}, 0
        return {name: self._average(name, parts, batches) for name, parts in kept.items()}

    def _average(self, name: str, parts: list[Violation], batches: int) -> Violation:
        if batches == 1:
            return parts[0]
        kinds, constraint = {type(part) for part in parts}, self._constraints.get(name)
        found = kinds.pop().average(parts, batches, constraint) if len(kinds) == 1 else None
        if found is not None:
            return found
        labels = ", ".join(sorted({part.label for part in parts}))
        raise TypeError(
            f"the violations of {name!r} in {batches} micro-batches are {labels} of {constraint!r}, which have no "
            "average here; give tensors, or Averaged, in every micro-batch, or train without gradient accumulation"
        )
