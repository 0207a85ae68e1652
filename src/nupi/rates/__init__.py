"""Constraints on rates of decisions: soft for the model, hard for the multipliers.

A rate is declared once, bounded, and measured on batches:

    from nupi import rates

    fair = rates.false_positive_rate(groups=2).gap() <= 0.02
    lagrangian = nupi.Lagrangian({"fair": fair.kind()})
    ...
    measured = fair(logits, labels, groups)
    lagrangian.ascend(dual, {"fair": measured.hard})       # decisions move the multipliers
    lagrangian(loss, {"fair": measured.soft}).backward()   # a smooth measure moves the model

`docs/rates.md` is the guide. `StatisticalParity`, `EqualOpportunity` and `EqualizedOdds` are ready-made: their gaps are
equalities, without a tolerance.
"""

from nupi.rates.algebra import stack
from nupi.rates.catalogue import (
    accuracy,
    cross_entropy,
    error_rate,
    f_score,
    false_discovery_rate,
    false_negative_proportion,
    false_negative_rate,
    false_omission_rate,
    false_positive_proportion,
    false_positive_rate,
    negative_rate,
    positive_rate,
    pr_auc,
    precision,
    precision_at_recall,
    recall,
    recall_at_precision,
    roc_auc,
    true_negative_proportion,
    true_negative_rate,
    true_positive_proportion,
    true_positive_rate,
)
from nupi.rates.constraint import Constraint
from nupi.rates.expressions import Expression
from nupi.rates.gaps import EqualizedOdds, EqualOpportunity, StatisticalParity, Tally
from nupi.rates.groups import Groups, crossed
from nupi.rates.margins import limits
from nupi.rates.window import Window

__all__ = [
    "Constraint",
    "EqualOpportunity",
    "EqualizedOdds",
    "Expression",
    "Groups",
    "StatisticalParity",
    "Tally",
    "Window",
    "accuracy",
    "cross_entropy",
    "crossed",
    "error_rate",
    "f_score",
    "false_discovery_rate",
    "false_negative_proportion",
    "false_negative_rate",
    "false_omission_rate",
    "false_positive_proportion",
    "false_positive_rate",
    "limits",
    "negative_rate",
    "positive_rate",
    "pr_auc",
    "precision",
    "precision_at_recall",
    "recall",
    "recall_at_precision",
    "roc_auc",
    "stack",
    "true_negative_proportion",
    "true_negative_rate",
    "true_positive_proportion",
    "true_positive_rate",
]
