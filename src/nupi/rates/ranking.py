"""Rates of the order in which a model puts the rows: ROC AUC, PR AUC, precision at recall, recall at precision.

They do not use the decision at 0.

- ROC AUC is the share of pairs (a positive and a negative row) in the right order. Its surrogate replaces the
  comparison of the two logits by the sigmoid (or the hinge's bounds) of their difference.
- PR AUC is the average precision: the mean, over positive rows, of the precision at the row's own logit as threshold.
  Its surrogate counts the rows above by sigmoids of differences (Smooth-AP, Brown et al., 2020).
- The other two are rates at a threshold: the highest with recall at least r, or the lowest with precision at least p.
  The threshold is the logit of one of the rows. The surrogates are the soft rates at this threshold, with the gradient
  of that logit (the quantile form of Mackey et al., 2018; Eban et al., 2017, train the threshold instead).

ROC AUC and PR AUC compare all pairs of a batch, so their soft forms need rows^2 memory. Hard forms sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.rates.decisions import Soft, decide
from nupi.rates.expressions import Interval
from nupi.rates.rate import Leaf

if TYPE_CHECKING:
    from nupi.rates.records import Scores


class _Ordered(NamedTuple):
    """Rows from the highest score down, rows of equal score joined: weights (steps, groups) for each label."""

    scores: torch.Tensor
    positive: torch.Tensor
    negative: torch.Tensor


@dataclass(frozen=True, eq=False, repr=False)
class RocAuc(Leaf):
    """The share of pairs (a positive and a negative row of one group) in the right order; ties count half."""

    def read(self, record: torch.Tensor, soft: Soft | None) -> Interval:
        """The value over the pairs of each group."""
        scores, positive, negative = _by_group(record)
        pairs = positive.sum(0) * negative.sum(0)
        if soft is None:
            steps = _ordered(scores, positive, negative)
            below = steps.negative.sum(0) - steps.negative.cumsum(0) + steps.negative / 2
            right = (steps.positive * below).sum(0)
            ends = [torch.where(scores.isnan().any(), torch.nan, right)] * 2
        else:
            order = decide((scores.unsqueeze(1) - scores).reshape(-1, 1), soft)
            ends = [
                torch.einsum("pg,pn,ng->g", positive, end.view(len(scores), -1), negative) for end in order
            ]
        lower, upper = (end / torch.where(pairs > 0, pairs, 1.0) for end in ends)
        return Interval(lower, upper, torch.minimum(positive.sum(0), negative.sum(0)))


@dataclass(frozen=True, eq=False, repr=False)
class PrAuc(Leaf):
    """The average precision: the mean, over a group's positive rows, of the precision at each one's own score."""

    def read(self, record: torch.Tensor, soft: Soft | None) -> Interval:
        """The value over the positive rows of each group."""
        scores, positive, negative = _by_group(record)
        total = positive.sum(0)
        if soft is None:
            steps = _ordered(scores, positive, negative)
            at, hits, misses = steps.positive, steps.positive.cumsum(0), steps.negative.cumsum(0)
        else:
            above = decide((scores - scores.unsqueeze(1)).reshape(-1, 1), _only_sigmoid(self.name, soft))
            itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
            above_or_at = torch.where(itself, 1.0, above.upper.view(len(scores), -1))
            at, hits, misses = positive, above_or_at @ positive, above_or_at @ negative
        accepted = hits + misses
        precision = hits / torch.where(accepted > 0, accepted, 1.0)
        value = (at * precision).sum(0) / torch.where(total > 0, total, 1.0)
        value = torch.where(scores.isnan().any(), torch.nan, value)
        return Interval(value, value, total.detach())


@dataclass(frozen=True, eq=False, repr=False)
class AtThreshold(Leaf):
    """Precision at the highest threshold with this recall, or recall at the lowest threshold with this precision."""

    record: Scores
    bound: float = 0.5
    of_precision: bool = True

    def read(self, record: torch.Tensor, soft: Soft | None) -> Interval:
        """The value at the threshold of each group."""
        scores, positive, negative = _by_group(record)
        steps = _ordered(scores.detach(), positive, negative)
        hits, misses = steps.positive.cumsum(0), steps.negative.cumsum(0)
        total = positive.sum(0)
        if self.of_precision:
            meets = hits >= self.bound * total * (1 - 1e-12)
            step = meets.to(torch.int8).argmax(0)  # the first
        else:
            meets = hits >= self.bound * (hits + misses) * (1 - 1e-12)
            step = len(meets) - 1 - meets.flip(0).to(torch.int8).argmax(0)  # the last
        found = meets.any(0)
        hit, miss = (each.gather(0, step.unsqueeze(0)).squeeze(0) for each in (hits, misses))
        if soft is not None:
            # The threshold is the score of a row, and has its gradient.
            row = (scores.detach().unsqueeze(1) == steps.scores[step]).to(torch.int8).argmax(0)
            likely = decide(
                (scores.unsqueeze(1) - scores[row]).reshape(-1, 1), _only_sigmoid(self.name, soft)
            )
            chances = likely.upper.view(len(scores), -1)
            hit, miss = (chances * positive).sum(0), (chances * negative).sum(0)
        below = hit + miss if self.of_precision else total
        value = torch.where(found, hit / torch.where(below > 0, below, 1.0), 0.0)
        value = torch.where(scores.isnan().any(), torch.nan, value)
        return Interval(value, value, torch.where(below > 0, total, 0.0).detach())


def _only_sigmoid(name: str, soft: Soft) -> Soft:
    if soft.surrogate != "sigmoid":
        raise ValueError(f"surrogate={soft.surrogate!r} does not bound {name}; take surrogate='sigmoid'")
    return soft


def _by_group(record: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, and the weights of positive and of negative rows by group (rows, groups)."""
    scores, relevant, weights = (record[:, i : i + 1] for i in range(3))
    members = record[:, 3:] * weights
    return scores.squeeze(1), members * relevant, members * (1 - relevant)


def _ordered(scores: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> _Ordered:
    levels, where = torch.unique(scores.detach(), return_inverse=True)
    where = len(levels) - 1 - where
    zeros = positive.new_zeros(len(levels), positive.shape[1])
    return _Ordered(levels.flip(0), zeros.index_add(0, where, positive), zeros.index_add(0, where, negative))
