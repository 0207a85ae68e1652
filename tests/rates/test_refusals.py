"""What the language of rates refuses, by name, and what to write in its place."""

import pytest
import torch
from rates.samples import rows

import nupi
from nupi import rates


@pytest.mark.parametrize(
    "constraint",
    [
        rates.positive_rate(groups=2).gap() <= 0.1,
        rates.precision(groups=2) >= 0.5,
        rates.accuracy() >= 0.5,
        rates.roc_auc() >= 0.5,
        rates.pr_auc() >= 0.5,
        rates.precision_at_recall(0.5) >= 0.5,
    ],
    ids=str,
)
def test_a_model_of_nans_is_refused(constraint):
    logits, labels, groups = torch.full((8,), torch.nan), torch.arange(8) % 2, torch.arange(8) // 4
    lagrangian = nupi.Lagrangian({"rate": constraint.kind()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    for hard in (constraint(logits, labels, groups).hard, constraint.measure([(logits, labels, groups)])):
        with pytest.raises(nupi.NonFiniteViolationError):
            lagrangian.ascend(dual, {"rate": hard})


def test_one_nan_among_several_classes_is_refused():
    logits = torch.tensor([[1.0, torch.nan], [2.0, 1.0]])
    assert rates.recall(classes=2).measure([(logits, torch.tensor([0, 1]))]).isnan().any()


def test_what_is_wrong_is_named():
    logits, labels, groups = rows(10, 3)
    recall = rates.recall(groups=3)
    for wrong, error, message in (
        (lambda: rates.recall(groups=0), ValueError, "groups=0 must be a whole number"),
        (lambda: rates.recall(groups=2.5), ValueError, "groups=2.5 must be a whole number"),
        (lambda: rates.recall(classes=1), ValueError, "classes=1 must be a whole number, at least 2"),
        (lambda: rates.recall(groups={}), ValueError, "names no attribute"),
        (lambda: rates.crossed(sex=2), ValueError, "at least two"),
        (lambda: rates.f_score(0), ValueError, "beta=0 must be positive"),
        (lambda: rates.precision_at_recall(1.5), ValueError, "recall=1.5"),
        (lambda: recall.gap("pairs"), ValueError, "choose 'groups' or 'overall'"),
        (lambda: rates.recall().gap(), ValueError, "at least 2 groups"),
        (lambda: recall.gap() <= -0.1, ValueError, "must be >= 0: a gap"),
        (lambda: recall.gap() >= 0.1, ValueError, "not a single constraint"),
        (lambda: recall <= float("nan"), ValueError, "finite"),
        (lambda: recall <= 5, ValueError, "bound=5: the recall is a share between 0 and 1; 5% is 0.05"),
        (lambda: recall >= -0.1, ValueError, "bound=-0.1: the recall is a share"),
        (lambda: recall == 0.9, TypeError, r"write .equals\(0.9\)"),
        (lambda: recall < 0.9, TypeError, "written with <= or >="),
        (lambda: max(recall[0], recall[1]), TypeError, r"largest of several is stack\(...\).max\(\)"),
        (lambda: recall[9], IndexError, "entry 9 was asked for, but there are"),
        (lambda: recall.gap().kind(), TypeError, "has no bound yet; bound it first"),
        (lambda: 0.1 <= recall <= 0.2, TypeError, "neither true nor false"),
        (lambda: recall * recall, TypeError, "product"),
        (lambda: recall + rates.recall(groups=2), ValueError, "3 and 2 entries"),
        (lambda: (recall >= 0.9).surrogate("relu"), ValueError, "sigmoid, hinge"),
        (lambda: (recall >= 0.9).surrogate(temperature=0), ValueError, "temperature=0"),
        (lambda: (rates.precision() >= 0.9).surrogate("hinge"), ValueError, "denominator depends"),
        (lambda: recall.equals(0.9).surrogate("hinge"), ValueError, "bound the gap instead"),
        (lambda: (recall >= 0.9)([0.1], labels, groups), TypeError, "logits must be a tensor, but a list"),
        (lambda: (recall >= 0.9)(labels, labels, groups), TypeError, "floating-point"),
        (lambda: (recall >= 0.9)(logits, labels.tolist(), groups), TypeError, "labels must be a tensor"),
        (lambda: (recall >= 0.9)(logits, labels, groups.tolist()), TypeError, "groups must be a tensor"),
        (lambda: (recall >= 0.9)(logits, None, groups), ValueError, "labels=None"),
        (lambda: (recall >= 0.9)(logits, labels), ValueError, "groups=None"),
        (lambda: (recall >= 0.9)(logits, labels, groups + 1), IndexError, "groups runs from"),
        (lambda: (recall >= 0.9)(logits, labels + 1, groups), ValueError, "labels are 0 and 1"),
        (lambda: (recall >= 0.9)(logits, labels, groups, weights=-logits.abs()), ValueError, "weights must be"),
        (lambda: (recall >= 0.9)(logits[:5], labels, groups), ValueError, "labels has shape"),
        (lambda: (recall >= 0.9)(logits.unsqueeze(1), labels, groups), ValueError, "squeeze"),
        (lambda: (recall >= 0.9).measure([]), ValueError, "batches is empty"),
        (lambda: (recall >= 0.9).measure((logits, labels, groups)), TypeError, "one tuple for each batch"),
        (lambda: (recall >= 0.9).measure([(logits, labels, groups * 0)]), ValueError, "none for: recall, group 1"),
        (lambda: rates.recall(classes=3).measure([(logits, labels)]), ValueError, r"\(rows, classes\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            wrong()


def test_attributes_must_come_by_name():
    logits, labels, groups = rows(10, 2)
    both = rates.recall(groups={"sex": 2, "race": 2})
    with pytest.raises(TypeError, match="must map the attributes 'sex', 'race'"):
        both.measure([(logits, labels, groups)])
    with pytest.raises(KeyError, match="no 'race'"):
        both.measure([(logits, labels, {"sex": groups})])


@pytest.mark.parametrize(
    "probabilities",
    [
        lambda out: out[:, 0].sigmoid(),
        lambda out: out.sigmoid()[:, :1].squeeze(1),
        lambda out: out.softmax(1)[:, 1].double(),
    ],
)
def test_probabilities_are_refused(probabilities):
    model = torch.nn.Linear(3, 2)
    out, labels = model(torch.randn(8, 3)), torch.arange(8) % 2
    constraint = rates.recall() >= 0.9
    with pytest.raises(ValueError, match="logits are probabilities"):
        constraint(probabilities(out), labels)
    constraint(torch.logit(probabilities(out)), labels)
    constraint(probabilities(out) - 0.5, labels)


def test_what_only_was_beside_probabilities_and_what_only_has_an_order_is_not_refused():
    model = torch.nn.Linear(3, 1)
    out, labels = model(torch.randn(8, 3)), torch.arange(8) % 2
    (rates.recall() >= 0.9)(torch.cat([out.sigmoid(), out], 1)[:, 1], labels)
    (rates.roc_auc() >= 0.9)(out.sigmoid().squeeze(1), labels)
