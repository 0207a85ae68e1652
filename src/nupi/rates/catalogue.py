"""The rates by name. Each is a share of rows.

`groups` says whose rates they are (see `nupi.rates.groups`). `classes` is the number of classes of the model: every
class then has its own rate, of "this class or not". In the formulas, TP and FP are the numbers of rows that are rightly
and wrongly decided positive. TN and FN are the numbers of rows that are rightly and wrongly decided negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, overload

from nupi.optim.checks import whole
from nupi.rates import gaps
from nupi.rates.expressions import number
from nupi.rates.groups import Groups
from nupi.rates.ranking import AtThreshold, PrAuc, RocAuc
from nupi.rates.rate import Rate
from nupi.rates.records import COLUMNS, Scores, Sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from nupi import Indexed

Of: TypeAlias = "int | Mapping[str, int] | Groups | None"
Weights: TypeAlias = "dict[str, float]"

ALL: Weights = {"pos": 1.0, "neg": 1.0}
DECIDED_POSITIVE: Weights = {"tp": 1.0, "fp": 1.0}
DECIDED_NEGATIVE: Weights = {"pos": 1.0, "neg": 1.0, "tp": -1.0, "fp": -1.0}
FALSE_NEGATIVE: Weights = {"pos": 1.0, "tp": -1.0}
TRUE_NEGATIVE: Weights = {"neg": 1.0, "fp": -1.0}


@overload
def positive_rate(*, groups: Of = None, classes: int | None = None) -> Rate: ...
@overload
def positive_rate(
    logits: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed: ...
def positive_rate(*rows: Any, **options: Any) -> Rate | Indexed:
    """(TP + FP) / all: how often the decision is positive.

    Given logits, groups and num_groups it is measured at once, on each group that is present.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{positive_rate().measure(rows).item():.2f}")
        0.60
    """
    if rows or "logits" in options:
        return gaps.positive_rate(*rows, **options)
    return _rate("positive rate", DECIDED_POSITIVE, ALL, labelled=False, **options)


@overload
def true_positive_rate(*, groups: Of = None, classes: int | None = None) -> Rate: ...
@overload
def true_positive_rate(
    logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed: ...
def true_positive_rate(*rows: Any, **options: Any) -> Rate | Indexed:
    """TP / (TP + FN): the share of the positive rows that are found; also recall, sensitivity.

    Given logits, labels, groups and num_groups it is measured at once, on each group that has such rows.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{true_positive_rate().measure(rows).item():.2f}")
        0.67
    """
    if rows or "logits" in options:
        return gaps.true_positive_rate(*rows, **options)
    return _rate("true positive rate", {"tp": 1.0}, {"pos": 1.0}, **options)


@overload
def false_positive_rate(*, groups: Of = None, classes: int | None = None) -> Rate: ...
@overload
def false_positive_rate(
    logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, num_groups: int, *, hard: bool = False
) -> Indexed: ...
def false_positive_rate(*rows: Any, **options: Any) -> Rate | Indexed:
    """FP / (FP + TN): the share of the negative rows that are decided positive.

    Given logits, labels, groups and num_groups it is measured at once, on each group that has such rows.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_positive_rate().measure(rows).item():.2f}")
        0.50
    """
    if rows or "logits" in options:
        return gaps.false_positive_rate(*rows, **options)
    return _rate("false positive rate", {"fp": 1.0}, {"neg": 1.0}, **options)


def recall(*, groups: Of = None, classes: int | None = None) -> Rate:
    """TP / (TP + FN): the true positive rate.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{recall().measure(rows).item():.2f}")
        0.67
    """
    return _rate("recall", {"tp": 1.0}, {"pos": 1.0}, groups=groups, classes=classes)


def negative_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """(TN + FN) / all: how often the decision is negative.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{negative_rate().measure(rows).item():.2f}")
        0.40
    """
    return _rate("negative rate", DECIDED_NEGATIVE, ALL, labelled=False, groups=groups, classes=classes)


def true_negative_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """TN / (TN + FP): the share of the negative rows that are decided negative; also specificity.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{true_negative_rate().measure(rows).item():.2f}")
        0.50
    """
    return _rate("true negative rate", TRUE_NEGATIVE, {"neg": 1.0}, groups=groups, classes=classes)


def false_negative_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """FN / (FN + TP): the share of the positive rows that are missed.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_negative_rate().measure(rows).item():.2f}")
        0.33
    """
    return _rate("false negative rate", FALSE_NEGATIVE, {"pos": 1.0}, groups=groups, classes=classes)


def true_positive_proportion(*, groups: Of = None, classes: int | None = None) -> Rate:
    """TP / all.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{true_positive_proportion().measure(rows).item():.2f}")
        0.40
    """
    return _rate("true positive proportion", {"tp": 1.0}, ALL, groups=groups, classes=classes)


def false_positive_proportion(*, groups: Of = None, classes: int | None = None) -> Rate:
    """FP / all.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_positive_proportion().measure(rows).item():.2f}")
        0.20
    """
    return _rate("false positive proportion", {"fp": 1.0}, ALL, groups=groups, classes=classes)


def true_negative_proportion(*, groups: Of = None, classes: int | None = None) -> Rate:
    """TN / all.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{true_negative_proportion().measure(rows).item():.2f}")
        0.20
    """
    return _rate("true negative proportion", TRUE_NEGATIVE, ALL, groups=groups, classes=classes)


def false_negative_proportion(*, groups: Of = None, classes: int | None = None) -> Rate:
    """FN / all.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_negative_proportion().measure(rows).item():.2f}")
        0.20
    """
    return _rate("false negative proportion", FALSE_NEGATIVE, ALL, groups=groups, classes=classes)


def accuracy(*, groups: Of = None, classes: int | None = None) -> Rate:
    """(TP + TN) / all: the share of right decisions. With several classes it is one rate for all classes together.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{accuracy().measure(rows).item():.2f}")
        0.60
    """
    if classes is not None:
        return _rate("accuracy", {"tp": 1.0}, {"pos": 1.0}, groups=groups, classes=classes, pooled=True)
    return _rate("accuracy", {"tp": 1.0, **TRUE_NEGATIVE}, ALL, groups=groups)


def error_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """(FP + FN) / all: the share of wrong decisions. With several classes it is one rate for all classes together.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{error_rate().measure(rows).item():.2f}")
        0.40
    """
    if classes is not None:
        return _rate("error rate", FALSE_NEGATIVE, {"pos": 1.0}, groups=groups, classes=classes, pooled=True)
    return _rate("error rate", {"fp": 1.0, **FALSE_NEGATIVE}, ALL, groups=groups)


def precision(*, groups: Of = None, classes: int | None = None) -> Rate:
    """TP / (TP + FP): the share of the positive decisions that are right. No value if there are no such decisions.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{precision().measure(rows).item():.2f}")
        0.67
    """
    return _rate("precision", {"tp": 1.0}, DECIDED_POSITIVE, groups=groups, classes=classes)


def false_discovery_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """FP / (TP + FP): the share of the positive decisions that are wrong.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_discovery_rate().measure(rows).item():.2f}")
        0.33
    """
    return _rate("false discovery rate", {"fp": 1.0}, DECIDED_POSITIVE, groups=groups, classes=classes)


def false_omission_rate(*, groups: Of = None, classes: int | None = None) -> Rate:
    """FN / (FN + TN): the share of the negative decisions that are wrong.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{false_omission_rate().measure(rows).item():.2f}")
        0.50
    """
    return _rate("false omission rate", FALSE_NEGATIVE, DECIDED_NEGATIVE, groups=groups, classes=classes)


def f_score(beta: float = 1.0, *, groups: Of = None, classes: int | None = None) -> Rate:
    """(1 + beta^2) TP / ((1 + beta^2) TP + beta^2 FN + FP): precision and recall in one; recall weighs beta times more.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{f_score(beta=2.0).measure(rows).item():.2f}")
        0.67
    """
    if not number("beta", beta) > 0:
        raise ValueError(f"beta={beta} must be positive")
    square = beta * beta
    top, bottom = {"tp": 1 + square}, {"tp": 1.0, "fp": 1.0, "pos": square}
    return _rate("F-score", top, bottom, groups=groups, classes=classes, binomial=False)


def cross_entropy(*, groups: Of = None, classes: int | None = None) -> Rate:
    """The mean cross-entropy of the logits: a loss that may be bounded like a rate. Soft and hard are the same.

    It is the mean over rows of -log p, with p the probability of the row's label: sum of -log p / number of rows.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{cross_entropy().measure(rows).item():.2f}")
        0.99
    """
    sums = Sums(Groups.of(groups), _classes(classes), labelled=True, loss=True)
    # Every class has the whole loss of every row, so the ratio is the same whether classes are added or not.
    return Rate("cross-entropy", sums, _columns({"loss": 1.0}), _columns(ALL), pooled=True, binomial=False)


def roc_auc(*, groups: Of = None) -> RocAuc:
    """The area under the ROC curve: the share of pairs in which the positive row has the larger logit.

    With z the logits: (pairs with z_positive > z_negative) / (all pairs).

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{roc_auc().measure(rows).item():.2f}")
        0.50
    """
    return RocAuc("ROC AUC", Scores(Groups.of(groups)))


def pr_auc(*, groups: Of = None) -> PrAuc:
    """The area under the precision-recall curve, as the average precision: the mean of the precisions at positive rows.

    It is the sum over positive rows i of TP(z_i) / (TP(z_i) + FP(z_i)), divided by their number; the threshold is z_i.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{pr_auc().measure(rows).item():.2f}")
        0.64
    """
    return PrAuc("PR AUC", Scores(Groups.of(groups)))


def precision_at_recall(recall: float, *, groups: Of = None) -> AtThreshold:
    """The precision at the highest threshold at which recall is at least `recall`.

    With t* = max of t with TP(t) / (TP(t) + FN(t)) >= recall, it is TP(t*) / (TP(t*) + FP(t*)).

    TFCO also has its inverse, which is a better loss: write `1 / precision_at_recall(recall)`.

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{precision_at_recall(0.6).measure(rows).item():.2f}")
        0.67
    """
    return AtThreshold(f"precision at recall {recall}", Scores(Groups.of(groups)), _share("recall", recall))


def recall_at_precision(precision: float, *, groups: Of = None) -> AtThreshold:
    """The recall at the lowest threshold at which precision is at least `precision`; 0 if there is none.

    With t* = min of t with TP(t) / (TP(t) + FP(t)) >= precision, it is TP(t*) / (TP(t*) + FN(t*)).

    Example:
        >>> import torch
        >>> rows = [(torch.tensor([2.0, 1.0, 3.0, -1.0, -2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]))]
        >>> print(f"{recall_at_precision(0.6).measure(rows).item():.2f}")
        1.00
    """
    bound = _share("precision", precision)
    return AtThreshold(
        f"recall at precision {precision}", Scores(Groups.of(groups)), bound, of_precision=False
    )


def _rate(
    name: str,
    top: Weights,
    bottom: Weights,
    *,
    groups: Of = None,
    classes: int | None = None,
    labelled: bool = True,
    pooled: bool = False,
    binomial: bool = True,
) -> Rate:
    sums = Sums(Groups.of(groups), _classes(classes), labelled)
    return Rate(name, sums, _columns(top), _columns(bottom), pooled, binomial)


def _columns(weights: Weights) -> tuple[float, ...]:
    return tuple(weights.get(column, 0.0) for column in COLUMNS)


def _classes(classes: int | None) -> int | None:
    return None if classes is None else whole("classes", classes, least=2)


def _share(name: str, given: float) -> float:
    if not 0 < number(name, given) <= 1:
        raise ValueError(f"{name}={given} must be above 0 and at most 1")
    return given
