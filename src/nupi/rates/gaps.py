"""Gaps between the rates of groups as equality constraints: parity, equal opportunity, equalized odds.

These are ready-made. With the expressions of `nupi.rates` you can write others, with tolerances. A rate is the mean
prediction over the rows of a group that meet a condition:

    positive rate         rate_g = mean of p_i over i in g
    true positive rate    rate_g = mean of p_i over i in g with y_i = 1
    false positive rate   rate_g = mean of p_i over i in g with y_i = 0

where p_i is either sigmoid(logit_i), which has a gradient for the model ("soft"), or 1 if logit_i > 0 and else 0, which
is the decision of the classifier ("hard").

A gap compares two rates: that of a group and that of all rows, or those of two groups:

    against="overall"   gap_g  = rate_g - rate      one constraint a group
    against="groups"    gap_gh = rate_g - rate_h    one a pair g < h, in the order of torch.combinations

If no row of a batch belongs to a group, the group has no rate. The batch then gives no violation for it (`Indexed` has
only the others), so neither the model nor its multiplier moves by it. Sums over groups are scatter-adds: the cost
depends on the batch size, not on the number of groups.

    parity = nupi.rates.StatisticalParity(groups=10)
    lagrangian = nupi.Lagrangian({"parity": nupi.Equality(parity.size)})
    ...
    lagrangian(loss, {"parity": parity(logits, labels, groups)})                      # a batch, soft
    lagrangian.ascend(dual, {"parity": parity.measure(evaluate(model, loader))})      # all rows, exact
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import torch

from nupi.optim.checks import whole
from nupi.rates.decisions import Soft
from nupi.rates.groups import Groups
from nupi.rates.records import Rows, Sums
from nupi.violations import Indexed

if TYPE_CHECKING:
    from collections.abc import Iterable

Against: TypeAlias = Literal["overall", "groups"]
Condition: TypeAlias = Literal["all", "positive", "negative"]
Batch: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
"""Logits, labels in {0, 1}, and group numbers, of equal length."""


def positive_rate(
    logits: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed:
    """The mean prediction of each group that is present.

    >>> seen = positive_rate(torch.tensor([2.0, -2.0, 3.0]), torch.tensor([0, 0, 2]), 3, hard=True)
    >>> seen.values, seen.indices
    (tensor([0.5000, 1.0000]), tensor([0, 2]))
    """
    return Tally.of(logits, None, groups, num_groups, ("all",), hard=hard).rates()


def true_positive_rate(
    logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed:
    """The mean prediction over the rows with label 1 of each group that has such rows."""
    return Tally.of(logits, labels, groups, num_groups, ("positive",), hard=hard).rates()


def false_positive_rate(
    logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed:
    """The mean prediction over the rows with label 0 of each group that has such rows."""
    return Tally.of(logits, labels, groups, num_groups, ("negative",), hard=hard).rates()


@dataclass(frozen=True)
class Tally:
    """What rates are computed from: per condition and group, the rows and the sum of their predictions.

    The rate of a group is (sum of predictions) / (number of rows).

    The sum of the tallies of all parts of the data is the tally of the whole. So an exact measure can be taken in
    chunks. Both tensors have the shape (conditions, groups).

    Example:
        >>> logits, labels = torch.tensor([2.0, -1.0, 1.0, 3.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> Tally.of(logits, labels, groups, 2, ("all",), hard=True).rates().values
        tensor([0.5000, 1.0000])
    """

    rows: torch.Tensor
    predictions: torch.Tensor

    def __post_init__(self) -> None:
        if self.rows.shape != self.predictions.shape:
            raise ValueError(
                f"rows has shape {tuple(self.rows.shape)} and predictions {tuple(self.predictions.shape)}; "
                "both must have one number for each condition and group"
            )

    @classmethod
    def of(
        cls,
        logits: torch.Tensor,
        labels: torch.Tensor | None,
        groups: torch.Tensor,
        num_groups: int,
        conditions: tuple[Condition, ...],
        *,
        hard: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tally:
        """The tally of one batch; differentiable in the logits unless `hard`. Sums are taken in `dtype`, if given."""
        labelled = conditions != ("all",)
        sums = Sums(Groups.of(num_groups), None, labelled)
        soft = None if hard else Soft("sigmoid", 1.0)
        found = sums.of(Rows(logits, labels if labelled else None, groups), soft)[0, 0]
        found = found.to(dtype or torch.promote_types(logits.dtype, torch.float32))
        hits, misses, positive, negative = found.unbind(1)[:4]
        columns = {
            "all": (positive + negative, hits + misses),
            "positive": (positive, hits),
            "negative": (negative, misses),
        }
        rows, predictions = zip(*(columns[condition] for condition in conditions), strict=True)
        return cls(torch.stack(rows), torch.stack(predictions))

    def __add__(self, other: Tally) -> Tally:
        if self.rows.shape != other.rows.shape:
            raise ValueError(
                f"tallies of (conditions, groups) {tuple(self.rows.shape)} and {tuple(other.rows.shape)} cannot be "
                "added; make both with the same conditions and num_groups"
            )
        return Tally(self.rows + other.rows, self.predictions + other.predictions)

    def rates(self) -> Indexed:
        """The rate of each condition c and group g that has rows, at index c * groups + g."""
        rows, predictions = self.rows.flatten(), self.predictions.flatten()
        seen = rows.nonzero().squeeze(1)
        return Indexed(predictions[seen] / rows[seen], seen)

    def gaps(self, against: Against) -> Indexed:
        """The gaps that these rows determine; the constraints of condition c come before those of c + 1."""
        if against not in get_args(Against):
            raise ValueError(f"against={against!r}: choose one of {', '.join(get_args(Against))}")
        rates = self.predictions / self.rows.clamp(min=1)
        if against == "overall":
            overall = self.predictions.sum(1, keepdim=True) / self.rows.sum(1, keepdim=True).clamp(min=1)
            gaps, seen = rates - overall, self.rows > 0
        else:
            one, other = _pairs(self.rows.shape[1], self.rows.device)
            gaps = rates[:, one] - rates[:, other]
            seen = (self.rows[:, one] > 0) & (self.rows[:, other] > 0)
        indices = seen.flatten().nonzero().squeeze(1)
        return Indexed(gaps.flatten().index_select(0, indices), indices)


@dataclass(frozen=True)
class _Criterion:
    """A notion of fairness as a group of equality constraints, each of them a gap that should be zero.

    Args:
        groups: the number of groups; group numbers run from 0 to groups - 1.
        against: "overall" compares each group with all rows, "groups" compares every pair of groups.
    """

    groups: int
    against: Against = "overall"

    conditions: ClassVar[tuple[Condition, ...]]

    def __post_init__(self) -> None:
        # A plain int, whatever came, so that sizes are plain ints too; the class is frozen to its users.
        object.__setattr__(self, "groups", whole("groups", self.groups))
        if self.groups < 2:
            raise ValueError(f"groups={self.groups}: a gap needs at least 2 groups")
        if self.against not in get_args(Against):
            raise ValueError(f"against={self.against!r}: choose one of {', '.join(get_args(Against))}")

    @property
    def size(self) -> int:
        """The number of constraints, as in `nupi.Equality(parity.size)`."""
        each = self.groups if self.against == "overall" else self.groups * (self.groups - 1) // 2
        return len(self.conditions) * each

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor | None, groups: torch.Tensor, *, hard: bool = False
    ) -> Indexed:
        """The gaps in one batch, of the constraints whose groups are present in it.

        Args:
            logits: the model's scores; positive means the positive class.
            labels: 0 or 1 for each row. Statistical parity does not use them, so None is possible too.
            groups: the group number of each row.
            hard: threshold the logits at 0 instead of taking their sigmoid. No gradient flows then.
        """
        return self.tally(logits, labels, groups, hard=hard).gaps(self.against)

    def tally(
        self, logits: torch.Tensor, labels: torch.Tensor | None, groups: torch.Tensor, *, hard: bool = False
    ) -> Tally:
        """What the gaps are computed from."""
        return Tally.of(logits, labels, groups, self.groups, self.conditions, hard=hard)

    @torch.no_grad()
    def measure(self, batches: Iterable[Batch], *, hard: bool = False) -> torch.Tensor:
        """The exact gaps over all rows of `batches`, in one pass; memory is one batch's. No gradient flows.

        Args:
            batches: tuples of logits, labels and groups, one for each chunk of rows. It may be a generator; its body
                runs without gradients: `parity.measure((model(x), y, g) for x, y, g in loader)`.
            hard: threshold the logits at 0 instead of taking their sigmoid.

        Returns:
            A dense tensor of `size` gaps, ready for `Lagrangian.ascend`.

        Raises:
            ValueError: a group has no rows that the gap needs, so a gap has no value.
        """
        total, dtype = None, torch.float32
        for logits, labels, groups in batches:
            dtype = torch.promote_types(dtype, logits.dtype)
            # A float32 cannot count past 2^24; MPS has nothing wider.
            wide = None if logits.device.type == "mps" else torch.float64
            part = Tally.of(logits, labels, groups, self.groups, self.conditions, hard=hard, dtype=wide)
            total = part if total is None else total + part
        if total is None:
            raise ValueError(
                "batches is empty, or an iterator that was used before; there is nothing to measure"
            )
        if not bool((total.rows > 0).all()):
            self._refuse_empty(total)
        return total.gaps(self.against).values.to(dtype)

    def _refuse_empty(self, total: Tally) -> None:
        where = (total.rows == 0).nonzero().tolist()
        names = {"all": "any row", "positive": "a row with label 1", "negative": "a row with label 0"}
        lacks = ", ".join(f"group {group} without {names[self.conditions[c]]}" for c, group in where)
        raise ValueError(f"batches must hold rows for every group to measure all gaps; found {lacks}")


@dataclass(frozen=True)
class StatisticalParity(_Criterion):
    """Every group is predicted positive at the same rate (also: demographic parity, no disparate impact).

    With r_g the positive rate of group g, the constraints are r_g - r = 0 for each group (`against="overall"`), or
    r_g - r_h = 0 for each pair (`against="groups"`).

    Example:
        >>> StatisticalParity(groups=10).size, StatisticalParity(groups=10, against="groups").size
        (10, 45)
    """

    conditions: ClassVar[tuple[Condition, ...]] = ("all",)


@dataclass(frozen=True)
class EqualOpportunity(_Criterion):
    """Those with label 1 are predicted positive at the same rate in every group.

    With TPR_g the true positive rate of group g, the constraints are TPR_g - TPR = 0 for each group, or
    TPR_g - TPR_h = 0 for each pair.

    Example:
        >>> logits, labels = torch.tensor([2.0, -1.0, 1.0, 3.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> EqualOpportunity(2).measure([(logits, labels, groups)], hard=True)
        tensor([-0.1667,  0.3333])
    """

    conditions: ClassVar[tuple[Condition, ...]] = ("positive",)


@dataclass(frozen=True)
class EqualizedOdds(_Criterion):
    """Equal true positive rates and equal false positive rates; the gaps of the former come first.

    The constraints are TPR_g - TPR = 0 and FPR_g - FPR = 0 for each group, or the same for each pair of groups.

    Example:
        >>> EqualizedOdds(2).size  # two gaps for each group
        4
    """

    conditions: ClassVar[tuple[Condition, ...]] = ("positive", "negative")


def _pairs(count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    one, other = torch.triu_indices(count, count, offset=1, device=device)
    return one, other
