"""Violations of several micro-batches as one: what `ascend` is given once an optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.rule import widened
from nupi.violations import Averaged, Dense, Indexed, Violation, as_violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.constraints import Constraint


class Accumulator:
    """Adds up the violations of micro-batches, and gives their average.

    Under accumulation the model descends on (1/k) * the sum of k Lagrangians, so the multipliers ascend on the same
    average: of tensors the mean over the micro-batches that had them, of `Averaged` violations all sums over all
    counts, of `Indexed` ones all rows, each divided by k. Of `Measured` violations the hard measure counts.
    """

    def __init__(self, constraints: Mapping[str, Constraint]) -> None:
        self._constraints = constraints
        self._kept: dict[str, list[Violation]] = {}
        self.batches = 0

    def add(self, violations: Mapping[str, Any]) -> None:
        """Note the violations of one micro-batch; nothing of their graph is kept."""
        for name, given in violations.items():
            moving = as_violation(name, given).moving()
            self._kept.setdefault(name, []).append(_detached(moving))
        self.batches += 1

    def taken(self) -> dict[str, Violation]:
        """The average of what was noted since this was last called."""
        kept, batches = self._kept, self.batches
        self._kept, self.batches = {}, 0
        return {name: self._average(name, parts, batches) for name, parts in kept.items()}

    def _average(self, name: str, parts: list[Violation], batches: int) -> Violation:
        if batches == 1:
            return parts[0]
        if all(isinstance(part, Dense) for part in parts):
            values = [part.values for part in parts if isinstance(part, Dense)]
            return Dense(torch.stack([each.to(widened(each.dtype)) for each in values]).mean(0))
        averaged = [part for part in parts if isinstance(part, Averaged)]
        if len(averaged) == len(parts):
            sums = torch.stack([part.sums.to(widened(part.sums.dtype)) for part in averaged]).sum(0)
            # Counts may be weights, or narrow integers: they are added in a type that holds them.
            counts = torch.stack([part.counts.to(sums.dtype) for part in averaged]).sum(0)
            return Averaged(sums, counts)
        indexed = [part for part in parts if isinstance(part, Indexed)]
        constraint = self._constraints.get(name)
        plain = constraint is None or constraint.multiplier_shape == constraint.shape
        if len(indexed) == len(parts) and plain:
            values = [part.values.to(widened(part.values.dtype)) for part in indexed]
            return Indexed(torch.cat(values) / batches, torch.cat([part.indices for part in indexed]))
        kinds = ", ".join(sorted({part.label for part in parts}))
        raise TypeError(
            f"the violations of {name!r} in {batches} micro-batches are {kinds} of {constraint!r}, which have no "
            "average here; give tensors, or Averaged, in every micro-batch, or train without gradient accumulation"
        )


def _detached(violation: Violation) -> Violation:
    if isinstance(violation, Dense):
        return Dense(violation.values.detach())
    if isinstance(violation, Averaged):
        return Averaged(violation.sums.detach(), violation.counts.detach())
    if isinstance(violation, Indexed):
        return Indexed(violation.values.detach(), violation.indices)
    return violation
