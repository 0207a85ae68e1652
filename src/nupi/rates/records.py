"""Records of rows, from which rates are computed. The records of parts can be joined to that of the whole.

A rate of decisions needs only sums. For each class c and group g, with w_i the weight of row i (1 unless given), p_i
its positive decision, soft or hard, and y_i whether it is of the class:

    tp = sum of w p y        fp = sum of w p (1 - y)        pos = sum of w y        neg = sum of w (1 - y)

Sums of batches add up to those of all rows. So a window or a whole data set is measured exactly. A rate of the order of
rows, such as ROC AUC, has no such sums. Its record is the scores of the rows, and records are concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nupi.rates.decisions import Soft, as_relevant, as_scores, check_no_probabilities, decide
from nupi.rates.groups import Groups, Numbers, as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Join: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
COLUMNS = ("tp", "fp", "pos", "neg", "loss")


class Rows(NamedTuple):
    """Rows of data with a model's scores, as the user gives them."""

    logits: torch.Tensor
    labels: torch.Tensor | None = None
    groups: Numbers | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True)
class Sums:
    """A record of sums by class and group: a tensor (bounds, classes, groups, columns), with loss last if needed.

    `bounds` is 1, or 2 for a hinge: first the lower bounds, then the upper.
    """

    groups: Groups
    classes: int | None
    labelled: bool = True
    loss: bool = False

    def of(self, rows: Rows, soft: Soft | None) -> torch.Tensor:
        """The record of these rows, differentiable in the logits if `soft`; the hard one is exact."""
        scores = as_scores(rows.logits, self.classes)
        if self.classes is None:
            check_no_probabilities(rows.logits)
        if self.labelled:
            relevant = as_relevant(rows.labels, self.classes, len(scores)).to(scores.dtype)
        else:
            relevant = torch.zeros_like(scores)
        weights = _weights(rows.weights, scores)
        bounds = decide(scores, soft)
        tables = [self._table(p, relevant, weights, rows, soft) for p in dict.fromkeys(bounds)]
        return torch.stack(tables)

    def _table(
        self,
        positive: torch.Tensor,
        relevant: torch.Tensor,
        weights: torch.Tensor,
        rows: Rows,
        soft: Soft | None,
    ) -> torch.Tensor:
        hit = positive * relevant
        columns = [hit, positive - hit, relevant, 1 - relevant]
        if self.loss:
            columns.append(self._loss(rows).expand_as(hit))
        parts = torch.stack(columns, dim=2) * weights
        # Hard measures are float64, because float32 cannot count past 2^24; soft ones need not be. MPS has no float64.
        if (soft is None or not torch.is_grad_enabled()) and parts.device.type != "mps":
            parts = parts.double()
        return self.groups.sum(parts, rows.groups).transpose(0, 1)

    def _loss(self, rows: Rows) -> torch.Tensor:
        scores = as_scores(rows.logits, self.classes)
        assert rows.labels is not None
        if self.classes is None:
            target = rows.labels.to(scores.dtype)
            return binary_cross_entropy_with_logits(scores.squeeze(1), target, reduction="none").unsqueeze(1)
        return cross_entropy(scores, rows.labels.long(), reduction="none").unsqueeze(1)

    def join(self, records: Sequence[torch.Tensor]) -> torch.Tensor:
        """The record of all rows that these are records of."""
        return torch.stack(list(records)).sum(0)

    def joined(self, record: torch.Tensor, join: Join | None) -> torch.Tensor:
        """The record of the rows of all processes, when `join` sums over them."""
        return record if join is None else join(record)


@dataclass(frozen=True)
class Scores:
    """A record of the rows themselves, (rows, 3 + groups): score, label, weight, and membership of each group."""

    groups: Groups

    def of(self, rows: Rows, soft: Soft | None) -> torch.Tensor:  # noqa: ARG002  (the order knows no surrogate)
        """The record of these rows, differentiable in the logits."""
        scores = as_scores(rows.logits, None)
        relevant = as_relevant(rows.labels, None, len(scores)).to(scores.dtype)
        weights = _weights(rows.weights, scores).squeeze(2)
        members = self.groups.members(rows.groups, len(scores), scores)
        return torch.cat([scores, relevant, weights, members], dim=1)

    def join(self, records: Sequence[torch.Tensor]) -> torch.Tensor:
        """The record of all rows that these are records of."""
        return torch.cat(list(records))

    def joined(self, record: torch.Tensor, join: Join | None) -> torch.Tensor:
        """Refused: a rate of the order of rows cannot be computed from sums."""
        if join is not None:
            raise ValueError(
                "join sums over processes, but a rate of the order of rows has no sums; leave out join"
            )
        return record


Record: TypeAlias = "Sums | Scores"


def gather(kinds: Iterable[Record], batches: Iterable[Any], soft: Soft | None) -> dict[Record, torch.Tensor]:
    """The records of all rows of `batches`, in one pass; of sums, memory is one batch's."""
    found: dict[Record, list[torch.Tensor]] = {kind: [] for kind in kinds}
    for batch in batches:
        if isinstance(batches, tuple) and isinstance(batch, torch.Tensor):
            raise TypeError(
                "batches must hold one tuple for each batch; for a single one give [(logits, labels, ...)]"
            )
        rows = Rows(*batch) if isinstance(batch, tuple | list) else Rows(batch)
        for kind, parts in found.items():
            parts.append(kind.of(rows, soft))
            if isinstance(kind, Sums):
                parts[:] = [kind.join(parts)]
    if not all(found.values()):
        raise ValueError("batches is empty, or an iterator that was used before; there is nothing to measure")
    return {kind: kind.join(parts) for kind, parts in found.items()}


def _weights(weights: object, scores: torch.Tensor) -> torch.Tensor:
    """The weight of each row as (rows, 1, 1)."""
    if weights is None:
        return scores.new_ones(len(scores), 1, 1)
    given = as_tensor("weights", weights)
    if given.shape != scores.shape[:1]:
        raise ValueError(f"weights has shape {tuple(given.shape)}, not one per row, ({len(scores)},)")
    if given.device.type == "cpu" and not torch.compiler.is_compiling() and bool((given < 0).any()):
        raise ValueError(f"weights must be >= 0, but {given.min().item()} came")
    return given.to(scores.dtype).detach().view(-1, 1, 1)
