"""How a classifier is trained under constraints: surrogates move the model, decisions move the multipliers.

At every look the decisions on all rows that are shown move the multipliers, and `nupi.Best` judges the model by them.
So what is kept in the end meets the bounds as decisions, if any model that was looked at did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nupi import Averaged, Best, Lagrangian, NuPI, rates
from nupi.integrations.sklearn.network import logits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from nupi.integrations.sklearn.rows import Rows

LOOKS = 200  # at most, in a fit
MARGIN = 1.0  # rows by which multipliers aim inside a bound, so that the model does not settle a hair outside of it
WINDOW = 50  # batches that the multipliers look back on, in partial_fit
CHUNK = 65_536  # rows that are scored at once
TOLERANCE = 1e-9  # what rounding may do to a rate that meets its bound exactly


def default_dual(
    multipliers: Sequence[torch.Tensor], steps: int, primal: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """What moves the multipliers unless the user says otherwise.

    Args:
        multipliers: what it moves.
        steps: the dual steps within which the constraints should be met.
        primal: the optimizer of the model.
    """
    del primal  # fixed gains do not look at the model
    # A rate that is off by 0.02 for so many steps then raises its multiplier by 1, against a loss of the order of 1.
    return NuPI(multipliers, ki=50.0 / steps, kp=5.0)


class Trainer:
    """A model, its multipliers, and what moves both.

    Args:
        module: from features to logits.
        classes: how many there are.
        constraints: on rates, by name; there may be none.
        steps: how many steps the model will take; how soon the multipliers should arrive follows from it.
        learning_rate: of Adam.
        weight_decay: of Adam.
        dual: makes the optimizer of the multipliers from them; `default_dual` unless given.
    """

    def __init__(
        self,
        module: nn.Module,
        classes: int,
        constraints: Mapping[str, rates.Constraint],
        *,
        steps: int,
        learning_rate: float,
        weight_decay: float,
        dual: Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer] | None,
    ) -> None:
        self.module, self.classes, self.constraints = module, classes, dict(constraints)
        self.steps, self.every = steps, max(1, steps // LOOKS)
        self.primal = torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=weight_decay)
        like = next(module.parameters())
        kinds = {name: each.kind() for name, each in self.constraints.items()}
        # Without constraints there is no Lagrangian: the loss is minimized as it is.
        self.lagrangian: Lagrangian | None = None
        self.dual: torch.optim.Optimizer | None = None
        if kinds:
            self.lagrangian = Lagrangian(kinds).to(device=like.device, dtype=like.dtype)
            multipliers = list(self.lagrangian.parameters())
            quarter = max(1, steps // self.every // 4)
            self.dual = default_dual(multipliers, quarter, self.primal) if dual is None else dual(multipliers)
        self.windows = {name: rates.Window(WINDOW) for name in kinds}
        self.error = rates.error_rate(classes=None if classes == 2 else classes)

    def fit(self, rows: Rows, shown: Rows, batch_rows: int, patience: int | None) -> tuple[Best, int]:
        """Train, and leave the best model seen in the module.

        Args:
            rows: what the model trains on.
            shown: what the multipliers, and the choice of a model, look at.
            batch_rows: rows of a batch.
            patience: stop after so many looks without a better model; None never stops.

        Returns:
            The best model, and how many steps were taken.
        """
        best = Best(self.lagrangian or cast("Lagrangian", _Free()), TOLERANCE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.primal, self.steps)
        watched = bool(self.constraints) or patience is not None
        stale, taken = 0, 0
        for taken, batch in enumerate(_batches(rows, batch_rows, self.steps)):
            if watched and taken % self.every == 0:
                violations = self.look(best, shown)
                stale = 0 if best.number == best.seen or not best.is_feasible else stale + 1
                if patience is not None and stale >= patience:
                    break
                self._ascend(violations, shown.unit)
            self.step(batch)
            schedule.step()
        else:
            taken += 1
            self.look(best, shown)
        if watched:
            best.restore(self.module)
        return best, taken

    def look(self, best: Best, rows: Rows) -> dict[str, Any]:
        """Judge the model by its decisions, and give their violations."""
        scored = self.scored(rows)
        violations = self.violations(scored)
        best.see(self.module, self.error.measure([scored]).item(), violations)
        return violations

    def stream(self, rows: Rows, batch_rows: int) -> None:
        """One pass over rows that come once; the multipliers look back on the last batches."""
        for batch in _batches(rows, batch_rows, -(-len(rows) // batch_rows)):
            self._ascend(self.violations(self.scored(batch), windows=self.windows), batch.unit)
            self.step(batch)

    def _ascend(self, violations: dict[str, Any], row: float) -> None:
        if self.lagrangian is not None and self.dual is not None:
            inside = {name: _inside(self.constraints[name], each, row) for name, each in violations.items()}
            self.lagrangian.ascend(self.dual, inside)

    def step(self, batch: Rows) -> None:
        """One step of the model, on the Lagrangian with soft violations."""
        self.module.train()
        scores = logits_of(self.module, batch.x, self.classes)
        loss = (_losses(scores, batch.y) * batch.weights).mean()
        if self.lagrangian is not None:
            violations = {
                name: each.soft(scores, batch.y, batch.groups, weights=batch.weights)
                for name, each in self.constraints.items()
            }
            loss = self.lagrangian(loss, violations)
        loss.backward()
        self.primal.step()
        self.primal.zero_grad()
        self.module.eval()

    @torch.no_grad()
    def scored(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, Any, torch.Tensor]:
        """Logits, labels, groups and weights, as rates take them."""
        self.module.eval()
        parts = [logits_of(self.module, part, self.classes) for part in rows.x.split(CHUNK)]
        return torch.cat(parts), rows.y, rows.groups, rows.weights

    def violations(
        self, scored: tuple[Any, ...], windows: Mapping[str, rates.Window] | None = None
    ) -> dict[str, Any]:
        """The violations of decisions, by name."""
        *rows, weights = scored
        return {
            name: each.hard(*rows, weights=weights, window=None if windows is None else windows[name])
            for name, each in self.constraints.items()
        }


class _Free:
    """What `Best` needs to know of a problem without constraints."""

    constraints: ClassVar[dict[str, Any]] = {}


def _inside(constraint: rates.Constraint, violation: Averaged, row: float) -> Averaged:
    """The violation if one more row, of this weight, were decided wrongly."""
    if constraint.equality:
        return violation
    return Averaged(violation.sums + MARGIN * row * (violation.counts > 0), violation.counts)


def _losses(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if scores.dim() == 1:
        return binary_cross_entropy_with_logits(scores, y.to(scores.dtype), reduction="none")
    return cross_entropy(scores, y, reduction="none")


def _batches(rows: Rows, size: int, steps: int) -> Iterator[Rows]:
    """So many batches, epoch after epoch in a new order; or all rows each time, if they are one batch."""
    taken = 0
    while taken < steps:
        if size >= len(rows):
            yield rows
            taken += 1
            continue
        for which in torch.randperm(len(rows)).split(size)[: steps - taken]:
            yield rows.chosen(which.to(rows.y.device))
            taken += 1


def largest_violations(trainer: Trainer, rows: Rows) -> dict[str, float]:
    """The largest violation of each constraint on these rows, of what they say anything of."""
    found = {}
    for name, violation in trainer.violations(trainer.scored(rows)).items():
        known = violation.counts > 0
        values = violation.sums[known] / violation.counts[known]
        if trainer.constraints[name].equality:
            values = values.abs()
        found[name] = float(values.max()) if len(values) else float("nan")
    return found
