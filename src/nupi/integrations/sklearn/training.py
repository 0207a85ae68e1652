"""Train a classifier under constraints: surrogates move the model, decisions move the multipliers.

At every evaluation, the decisions on all evaluation rows move the multipliers, and `nupi.Best` judges the model by
them. So the decisions of the kept model meet the bounds, if those of any evaluated model did.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nupi import Averaged, Best, Lagrangian, NuPI, SelfTuned, rates
from nupi.integrations.duals import go_on
from nupi.integrations.sklearn.network import logits_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from nupi.integrations.sklearn.rows import Rows

LOOKS = 200  # the most evaluations in a fit
ARRIVAL = (
    16  # SelfTuned's steps are 1/16 of the evaluations; with 1/4, one run of ten met its bounds too late
)
MARGIN = 1.0  # multipliers aim this many rows inside a bound, so that the model does not settle just outside
WINDOW = 50  # the number of batches over which partial_fit measures violations
CHUNK = 65_536  # rows that are scored at once
TOLERANCE = 1e-9  # the largest rounding error of a rate that meets its bound exactly


def make_dual(
    given: Any,
    multipliers: Sequence[torch.Tensor],
    looks: int,
    primal: torch.optim.Optimizer,
    *,
    stream: bool,
) -> torch.optim.Optimizer:
    """Make the dual optimizer.

    Args:
        given: "self_tuned" for `nupi.SelfTuned`, "fixed" for `nupi.NuPI`, or a function of the multipliers.
        multipliers: the multipliers that it moves.
        looks: the dual steps of a fit.
        primal: the optimizer of the model.
        stream: whether rows come by `stream`, in batches that are seen once.
    """
    if isinstance(given, str) and given == "self_tuned":
        return SelfTuned(multipliers, WINDOW if stream else max(1, looks // ARRIVAL), primal=primal)
    if isinstance(given, str) and given == "fixed":
        # A rate that is off by 0.02 for a quarter of the looks then raises its multiplier by 1, against a loss of the
        # order of 1.
        return NuPI(multipliers, ki=50.0 / max(1, looks // 4), kp=5.0)
    if not callable(given):
        raise TypeError(
            f'dual={given!r} is neither "self_tuned", nor "fixed", nor a function that makes an optimizer'
        )
    made: torch.optim.Optimizer = given(multipliers)
    return made


class Trainer:
    """A model, its multipliers, and the optimizers of both.

    Args:
        module: maps features to logits.
        classes: the number of classes.
        constraints: the constraints on rates by name; may be empty.
        steps: the number of steps of the model, from which the steps of the dual optimizer follow.
        learning_rate: the learning rate of Adam.
        weight_decay: the weight decay of Adam.
        dual: the dual optimizer; see `make_dual`.
        stream: whether rows come by `stream`, in batches that are seen once, not by `fit`.
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
        dual: Any,
        stream: bool,
    ) -> None:
        self.module, self.classes, self.constraints = module, classes, dict(constraints)
        self.steps, self.every = steps, max(1, steps // LOOKS)
        self.primal = torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=weight_decay)
        like = next(module.parameters())
        kinds = {name: each.kind() for name, each in self.constraints.items()}
        # Without constraints there is no Lagrangian; the loss alone is minimized.
        self.lagrangian: Lagrangian | None = None
        self.dual: torch.optim.Optimizer | None = None
        if kinds:
            self.lagrangian = Lagrangian(kinds).to(device=like.device, dtype=like.dtype)
            multipliers = list(self.lagrangian.parameters())
            self.dual = make_dual(dual, multipliers, steps // self.every, self.primal, stream=stream)
        self.windows = {name: rates.Window(WINDOW) for name in kinds}
        self.error = rates.error_rate(classes=None if classes == 2 else classes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle; its dual optimizer measures the response of its own model."""
        self.__dict__.update(state)
        if isinstance(self.dual, SelfTuned) and self.dual.param_groups[0]["measured"]:
            assert self.lagrangian is not None
            self.dual.watch(self.primal)
            go_on(self.lagrangian, self.dual)

    def fit(self, rows: Rows, shown: Rows, batch_rows: int, patience: int | None) -> tuple[Best, int]:
        """Train, and load the best evaluated model into the module.

        Args:
            rows: the training rows.
            shown: the evaluation rows, for the multipliers and for the choice of the model.
            batch_rows: the number of rows of a batch.
            patience: stop after this many evaluations without a better model; None never stops.

        Returns:
            The best model, and the number of steps taken.
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
        for group in self.primal.param_groups:
            group["lr"] = group["initial_lr"]  # the schedule has ended, and rows may come by `stream`
        return best, taken

    def look(self, best: Best, rows: Rows) -> dict[str, Any]:
        """Evaluate the decisions of the model; returns their violations."""
        scored = self.scored(rows)
        violations = self.violations(scored)
        best.see(self.module, self.error.measure([scored]).item(), violations)
        return violations

    def stream(self, rows: Rows, batch_rows: int) -> int:
        """Train in one pass over rows that come once. The multipliers use the violations over the last batches.

        Returns:
            The number of steps taken.
        """
        taken = 0
        for batch in _pass(rows, batch_rows):
            self._ascend(self.violations(self.scored(batch), windows=self.windows), batch.unit)
            self.step(batch)
            taken += 1
        return taken

    def _ascend(self, violations: dict[str, Any], row: float) -> None:
        if self.lagrangian is not None and self.dual is not None:
            inside = {name: _inside(self.constraints[name], each, row) for name, each in violations.items()}
            self.lagrangian.ascend(self.dual, inside)

    def step(self, batch: Rows) -> None:
        """Take one step of the model, on the Lagrangian with soft violations."""
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
        """Logits, labels, groups and weights, as the arguments of rates."""
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
    """Stands for a Lagrangian without constraints, for `Best`."""

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
    """`steps` batches, over as many epochs as needed."""
    epochs = (_pass(rows, size) for _ in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(epochs), steps)


def _pass(rows: Rows, size: int) -> Iterator[Rows]:
    """All rows once, in batches and in a new order. If they are one batch, in the given order."""
    if size >= len(rows):
        yield rows
        return
    batches = list(torch.randperm(len(rows)).split(size))
    if len(batches[-1]) == 1 < size:
        # A batch of one row has no deviation, which a batch norm needs.
        last = batches.pop()
        batches[-1] = torch.cat([batches[-1], last])
    for which in batches:
        yield rows.chosen(which.to(rows.y.device))


def largest_violations(trainer: Trainer, rows: Rows) -> dict[str, float]:
    """The largest violation of each constraint that can be measured on these rows."""
    found = {}
    for name, violation in trainer.violations(trainer.scored(rows)).items():
        known = violation.counts > 0
        values = violation.sums[known] / violation.counts[known]
        if trainer.constraints[name].equality:
            values = values.abs()
        found[name] = float(values.max()) if len(values) else float("nan")
    return found
