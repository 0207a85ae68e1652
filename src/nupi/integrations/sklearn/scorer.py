"""A scorer for model selection. It ranks every model that meets the constraints above every one that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, make_scorer

from nupi.integrations.sklearn import names
from nupi.integrations.sklearn.sensitive import Attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def constrained_scorer(
    constraints: Mapping[str, Any],
    metric: Callable[..., float] = accuracy_score,
    *,
    tolerance: float = 0.0,
    pos_label: Any = None,
    intersections: bool = False,
) -> Any:
    """Make a scorer: the metric if decisions meet the constraints, else minus the largest violation.

    For `GridSearchCV(..., scoring=...)` and `cross_val_score`. Constraints on groups need the groups of the rows that
    are scored: `sklearn.set_config(enable_metadata_routing=True)` and
    `constrained_scorer(...).set_score_request(sensitive_features=True)`.

    Args:
        constraints: bounds by name, as for `ConstrainedClassifier`.
        metric: a function of labels and predictions that is never below 0, the larger the better.
        tolerance: the violation that you accept; a fold has few rows, so a small violation may be chance.
        pos_label: the positive class, if there are two; by default the last in sorted order.
        intersections: whether the groups are the combinations of the sensitive attributes.

    Example:
        >>> from sklearn.dummy import DummyClassifier
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
        >>> score = constrained_scorer({"positive_rate": 0.6})  # at most 60% positive decisions
        >>> score(LogisticRegression().fit(X, y), X, y)  # it has 50%, so this is its accuracy
        1.0
        >>> score(DummyClassifier(strategy="constant", constant=1).fit(X, y), X, y)  # it has 100%, 0.4 too many
        -0.4
    """
    return make_scorer(
        ConstrainedScore(
            constraints, metric, tolerance=tolerance, pos_label=pos_label, intersections=intersections
        )
    )


class ConstrainedScore:
    """The score of predictions; `constrained_scorer` makes a scorer of it."""

    def __init__(
        self,
        constraints: Mapping[str, Any],
        metric: Callable[..., float],
        *,
        tolerance: float,
        pos_label: Any,
        intersections: bool,
    ) -> None:
        self.constraints, self.metric, self.tolerance = dict(constraints), metric, tolerance
        self.pos_label, self.intersections = pos_label, intersections

    def __call__(
        self, y_true: Any, y_pred: Any, *, sensitive_features: Any = None, sample_weight: Any = None
    ) -> float:
        """The metric, or minus the largest violation."""
        found = violations(
            self.constraints,
            y_true,
            y_pred,
            sensitive_features=sensitive_features,
            sample_weight=sample_weight,
            pos_label=self.pos_label,
            intersections=self.intersections,
        )
        worst = max(found.values(), default=0.0)
        if worst > self.tolerance:
            return -worst
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self.metric(y_true, y_pred, **weights))


def violations(
    constraints: Mapping[str, Any],
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any = None,
    sample_weight: Any = None,
    pos_label: Any = None,
    intersections: bool = False,
    classes: Any = None,
    known: Attributes | None = None,
) -> dict[str, float]:
    """The largest violation of each constraint by these predictions, without those that cannot be measured."""
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if classes is None:
        classes = np.unique(np.concatenate([y_true, y_pred]))
    if len(classes) < 2 and pos_label is None:
        raise ValueError(
            f"there is only the class {classes[0]!r}; give pos_label to say which class is positive"
        )
    groups = sizes = None
    if sensitive_features is not None:
        attributes = Attributes.learn(
            sensitive_features, len(y_true), intersections=intersections, known=known
        )
        groups, sizes = attributes.numbers(sensitive_features, len(y_true)), attributes.sizes
    if len(classes) > 2:
        labels = torch.as_tensor(np.searchsorted(classes, y_true))
        decided = torch.as_tensor(np.searchsorted(classes, y_pred))
        scores = torch.nn.functional.one_hot(decided, len(classes)).double()
    else:
        positive = classes[-1] if pos_label is None else pos_label
        labels = torch.as_tensor(y_true == positive).long()
        scores = torch.as_tensor(np.where(y_pred == positive, 1.0, -1.0))
    weights = None if sample_weight is None else torch.as_tensor(np.asarray(sample_weight, dtype=np.float64))
    found = {}
    for name, constraint in names.build(constraints, sizes, list(classes)).items():
        violation = constraint.hard(scores, labels, groups, weights=weights)
        there = violation.counts > 0
        if bool(there.any()):
            value = violation.sums[there] / violation.counts[there]
            found[name] = float((value.abs() if constraint.equality else value).max())
    return found
