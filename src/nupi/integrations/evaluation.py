"""Whether a model meets its constraints on a whole data set, from the violations of its batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from nupi import distributed
from nupi.loop.best import largest_violation, tolerances
from nupi.violations import Averaged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.lagrangian import Lagrangian

# The score of a model that just misses its constraints: larger than any loss. The excess is a factor, not a summand,
# because a front end may keep numbers in float32.
INFEASIBLE = 1e9


class Evaluation:
    """Averages violations over the batches of an evaluation, and checks whether the average meets the constraints.

    A tensor is weighted by the number of rows of its batch. Sums and counts of `Averaged` violations are added. A row
    of an `Indexed` violation is averaged over the batches that have it. `Measured` uses its hard measure. So a rate is
    exact. For a violation that is not a mean over rows, such as the gap of two rates, the mean over batches is used.
    """

    def __init__(self, lagrangian: Lagrangian, tolerance: float | Mapping[str, float] = 0.0) -> None:
        self._lagrangian = lagrangian
        self._tolerance = tolerances(tolerance, lagrangian.constraints)
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, torch.Tensor] = {}
        self.clear()

    def clear(self) -> None:
        """Remove all batches."""
        self.batches, self._rows = 0, 0
        for name, constraint in self._lagrangian.constraints.items():
            like = self._lagrangian.multipliers[name]
            # Apple's devices have no float64.
            dtype = torch.float32 if like.device.type == "mps" else torch.float64
            self._sums[name] = like.new_zeros(constraint.shape, dtype=dtype)
            self._counts[name] = like.new_zeros(constraint.shape[:1], dtype=dtype)
            self._loss = like.new_zeros((), dtype=dtype)

    @torch.no_grad()
    def add(self, violations: Mapping[str, Any], rows: int, loss: torch.Tensor | None = None) -> None:
        """Add the violations of a batch with this number of rows, and its loss if the losses shall be averaged too."""
        for target, given in self._lagrangian._paired(violations):
            sums, counts = self._sums[target.name], self._counts[target.name]
            part = given.moving().parts(target)
            if part.values.shape != sums.shape:
                raise TypeError(
                    f"the violation of {target.name!r} is {given.moving().label}, which has no average over batches; "
                    "give a tensor, Averaged or Indexed"
                )
            if part.weights is None:
                sums.add_(part.values, alpha=rows)
                counts.add_(rows)
            else:
                sums.add_(part.values)
                counts.add_(part.weights)
        if loss is not None:
            self._loss = self._loss + rows * loss.detach().to(self._loss)
            self._rows += rows
        self.batches += 1

    def metrics(self, loss: float | None = None) -> dict[str, float]:
        """The verdict, over all processes.

        | name | meaning |
        | --- | --- |
        | `feasible` | 1.0 if no constraint is violated by more than its tolerance, else 0.0 |
        | `violation` | the largest violation of all |
        | `<constraint>/violation` | the largest violation of a group; infinite if some of it was not measured |
        | `score` | smaller is better: the loss if feasible, else 1e9 (1 + the largest excess over a tolerance) |

        Args:
            loss: the loss for the score; by default the mean of the added losses.
        """
        self._join()
        found = {name: self._worst(name) for name in self._lagrangian.constraints}
        excess = max(value - self._tolerance[name] for name, value in found.items())
        numbers = {"feasible": float(excess <= 0), "violation": max(found.values())}
        if loss is None and self._rows:
            loss = self._loss.item() / self._rows
        if loss is not None:
            numbers["score"] = loss if excess <= 0 else INFEASIBLE * (1.0 + excess)
        return numbers | {f"{name}/violation": value for name, value in found.items()}

    def _worst(self, name: str) -> float:
        mean = Averaged(self._sums[name], self._counts[name])
        if not bool(mean.sums.isfinite().all()):
            return math.inf  # not an error: an evaluation must not end a training
        return largest_violation(name, self._lagrangian.constraints[name], mean)

    def _join(self) -> None:
        """Sum over all processes. With `reduce=None` each process already has the violations of all."""
        group = self._lagrangian.group
        if self._lagrangian.reduce is None or distributed.world_size(group) == 1:
            return
        tables = [*self._sums.values(), *self._counts.values()]
        mine = torch.stack([self._loss, self._loss.new_tensor(self._rows)])
        flat = distributed.total(torch.cat([*(table.view(-1) for table in tables), mine]), group)
        *parts, loss = flat.split([*(table.numel() for table in tables), 2])
        for table, part in zip(tables, parts, strict=True):
            table.copy_(part.view(table.shape))
        self._loss, self._rows = loss[0], int(loss[1])


def rows_of(batch: Any) -> int:
    """How many rows a batch has: the length of the first tensor in it, 1 if there is none."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return len(leaf)
    return 1
