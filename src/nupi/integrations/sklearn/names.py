"""Constraints by name with a bound, as constraints on rates of decisions.

{"equalized_odds": 0.02}           no two groups differ by more than 0.02, in true or in false positive rate
{"false_positive_rate": 0.05}      a rate of all rows: an upper bound for errors, a lower bound for successes
{"recall_by_group": 0.7}           the same for every group
{"positive_rate": (0.1, 0.3)}      a lower and an upper bound; None for no bound
{"recall": {"setosa": 0.9}}        with several classes: bounds for these classes; a plain number bounds all
{"any name": nupi.rates constraint}
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nupi import rates
from nupi.rates.algebra import Chosen
from nupi.rates.expressions import Expression, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.integrations.sklearn.rows import Rows
    from nupi.rates.groups import Numbers

GAPS: dict[str, tuple[Callable[..., Any], ...]] = {
    "demographic_parity": (rates.positive_rate,),
    "equal_opportunity": (rates.true_positive_rate,),
    "equalized_odds": (rates.true_positive_rate, rates.false_positive_rate),
    "true_positive_rate_parity": (rates.true_positive_rate,),
    "false_positive_rate_parity": (rates.false_positive_rate,),
    "error_rate_parity": (rates.error_rate,),
}
"""Bounds on the largest difference between two groups, under the names that fairlearn gives them."""

AT_MOST: dict[str, Callable[..., Any]] = {
    "error_rate": rates.error_rate,
    "false_discovery_rate": rates.false_discovery_rate,
    "false_negative_rate": rates.false_negative_rate,
    "false_omission_rate": rates.false_omission_rate,
    "false_positive_rate": rates.false_positive_rate,
    "positive_rate": rates.positive_rate,
}
AT_LEAST: dict[str, Callable[..., Any]] = {
    "accuracy": rates.accuracy,
    "f_score": rates.f_score,
    "negative_rate": rates.negative_rate,
    "precision": rates.precision,
    "recall": rates.recall,
    "true_negative_rate": rates.true_negative_rate,
    "true_positive_rate": rates.true_positive_rate,
}
BY_GROUP = "_by_group"
TEMPERATURE = 0.5  # of the sigmoid that replaces decisions in the loss


def build(
    constraints: Mapping[str, Any] | None, groups: Mapping[str, int] | None, classes: Sequence[Any]
) -> dict[str, rates.Constraint]:
    """Make constraints on rates from names and bounds.

    Args:
        constraints: bounds by name.
        groups: the number of groups of each sensitive attribute; None if there are none.
        classes: the labels of the classes.
    """
    if constraints is not None and not isinstance(constraints, Mapping):
        raise TypeError(
            f"constraints must map names to bounds, such as {{'equalized_odds': 0.02}}, but {constraints!r} came"
        )
    return {name: _one(name, bound, groups, classes) for name, bound in (constraints or {}).items()}


def _one(name: str, bound: Any, groups: Mapping[str, int] | None, classes: Sequence[Any]) -> rates.Constraint:
    if isinstance(bound, rates.Constraint):
        return bound
    count = len(classes) if len(classes) > 2 else None
    if name in GAPS:
        return _gap(name, _groups(name, groups), count).at_most(_bound(name, bound))
    plain = name.removesuffix(BY_GROUP)
    if plain not in AT_MOST and plain not in AT_LEAST:
        known = ", ".join([*GAPS, *AT_MOST, *AT_LEAST])
        raise ValueError(
            f"constraints has {name!r}, which is not a known constraint; choose from {known} "
            f"(rates also with {BY_GROUP!r} at the end), or give a constraint of nupi.rates"
        )
    whose = dict(_groups(name, groups)) if plain != name else None
    rate = (AT_MOST | AT_LEAST)[plain](groups=whose, classes=count)
    sides = [
        side
        for entries, low, high in _bounds(name, plain, bound, rate, classes)
        for side in ([] if high is None else [entries - high]) + ([] if low is None else [low - entries])
    ]
    return rates.stack(*sides).at_most(0.0)


def _gap(name: str, groups: Mapping[str, int], classes: int | None) -> Expression:
    """The differences between the groups of each attribute, class by class."""
    parts: list[Expression] = []
    for attribute, size in groups.items():
        if size < 2:
            raise ValueError(
                f"{name!r} compares groups, but sensitive_features[{attribute!r}] has one value only"
            )
        for make in GAPS[name]:
            rate = make(groups={attribute: size}, classes=classes)
            # Class c and group g are at c * size + g.
            parts += [rate[start : start + size].gap() for start in range(0, rate.size, size)]
    return rates.stack(*parts)


def _bounds(
    name: str, plain: str, bound: Any, rate: Any, classes: Sequence[Any]
) -> list[tuple[Expression, float | None, float | None]]:
    """The lower and the upper bound of each entry of a rate."""
    if isinstance(bound, Mapping):
        known = list(classes)
        each = rate.size // len(known)
        if len(known) != rate.classes:
            raise ValueError(
                f"constraints[{name!r}] is by class, but there is one rate for all; give a number, and pos_label to "
                "say which class is positive"
            )
        for label in bound:
            if label not in known:
                raise ValueError(
                    f"constraints[{name!r}] names the class {label!r}; the classes are {known!r}"
                )
        starts = {label: known.index(label) * each for label in bound}
        return [
            (rate[start : start + each], *_pair(name, plain, bound[label])) for label, start in starts.items()
        ]
    return [(rate, *_pair(name, plain, bound))]


def _pair(name: str, plain: str, bound: Any) -> tuple[float | None, float | None]:
    if isinstance(bound, tuple | list):
        if len(bound) != 2 or all(side is None for side in bound):
            raise ValueError(f"constraints[{name!r}]={bound!r} must be a number or a pair (lowest, highest)")
        low, high = (None if side is None else _bound(name, side) for side in bound)
        if low is not None and high is not None and low > high:
            raise ValueError(f"constraints[{name!r}]={bound!r} has its lowest value above its highest")
        return low, high
    value = _bound(name, bound)
    return (value, None) if plain in AT_LEAST else (None, value)


def _bound(name: str, given: Any) -> float:
    bound = number(f"constraints[{name!r}]", given)
    if not 0.0 <= bound <= 1.0:
        raise ValueError(f"constraints[{name!r}]={given!r} bounds a rate, and must be between 0 and 1")
    return bound


def _groups(name: str, groups: Mapping[str, int] | None) -> Mapping[str, int]:
    if groups is None:
        raise ValueError(
            f"{name!r} is a constraint on groups, but sensitive_features=None; give the group of each row"
        )
    return groups


def prepared(
    constraints: Mapping[str, Any],
    groups: Mapping[str, int] | None,
    classes: Sequence[Any],
    shown: Rows | None,
    confidence: float | None,
) -> dict[str, rates.Constraint]:
    """The constraints to train under.

    Args:
        constraints: bounds by name.
        groups: the number of groups of each sensitive attribute.
        classes: the labels of the classes.
        shown: the rows on which violations are measured. What cannot be measured on them is left out, with a warning.
        confidence: the confidence with which the bounds must hold on new rows.
    """
    found = {}
    for name, built in build(constraints, groups, classes).items():
        constraint = built
        if constraints[name] is not built:  # a constraint of nupi.rates stays as it is
            constraint = constraint.surrogate("sigmoid", temperature=TEMPERATURE)
        if confidence is not None:
            constraint = constraint.confident(confidence, comparisons=len(constraints))
        if shown is None:
            found[name] = constraint
            continue
        known, lacks = measurable(constraint, shown.y, shown.groups, shown.weights, len(classes))
        if lacks:
            warnings.warn(f"constraint {name!r}: no rows for {'; '.join(lacks)}", stacklevel=5)
        if known is not None:
            found[name] = known
    return found


def measurable(
    constraint: rates.Constraint,
    labels: torch.Tensor,
    groups: Numbers | None,
    weights: torch.Tensor | None,
    classes: int,
) -> tuple[rates.Constraint | None, list[str]]:
    """The part of a constraint that can be measured on these rows, and the names of the rest.

    For example, a group without positive rows has no recall. To find out, each class is once the decision for all
    rows: a rate without a value in all of these cases cannot be measured.
    """
    scores = (
        [torch.full(labels.shape, sign) for sign in (1.0, -1.0)]
        if classes == 2
        else [torch.eye(classes)[c].expand(len(labels), classes) for c in range(classes)]
    )
    counts = sum(
        constraint.hard(each.to(labels.device), labels, groups, weights=weights).counts for each in scores
    )
    assert isinstance(counts, torch.Tensor)
    known = (counts > 0).expand(constraint.size).tolist()
    lacks = [name for name, is_known in zip(constraint.names, known, strict=True) if not is_known]
    if not lacks:
        return constraint, []
    kept = tuple(i for i, is_known in enumerate(known) if is_known)
    if not kept:
        return None, lacks
    return rates.Constraint(
        Chosen(constraint.expression, kept),
        equality=constraint.equality,
        soft_by=constraint.soft_by,
        confidence=constraint.confidence,
    ), lacks
