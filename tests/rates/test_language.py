"""The rates, what is made of them and the constraints on them, against scikit-learn, fairlearn and plain loops."""

import copy
import itertools
import math
import pickle

import fairlearn.metrics
import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi
from nupi import rates

BINARY = {
    "positive_rate": lambda _, p: p.mean(),
    "negative_rate": lambda _, p: 1 - p.mean(),
    "true_positive_rate": sk.recall_score,
    "recall": sk.recall_score,
    "false_positive_rate": lambda y, p: 1 - sk.recall_score(y, p, pos_label=0),
    "true_negative_rate": lambda y, p: sk.recall_score(y, p, pos_label=0),
    "false_negative_rate": lambda y, p: 1 - sk.recall_score(y, p),
    "true_positive_proportion": lambda y, p: sk.confusion_matrix(y, p, normalize="all")[1, 1],
    "false_positive_proportion": lambda y, p: sk.confusion_matrix(y, p, normalize="all")[0, 1],
    "true_negative_proportion": lambda y, p: sk.confusion_matrix(y, p, normalize="all")[0, 0],
    "false_negative_proportion": lambda y, p: sk.confusion_matrix(y, p, normalize="all")[1, 0],
    "accuracy": sk.accuracy_score,
    "error_rate": sk.zero_one_loss,
    "precision": sk.precision_score,
    "false_discovery_rate": lambda y, p: 1 - sk.precision_score(y, p),
    "false_omission_rate": lambda y, p: 1 - sk.precision_score(y, p, pos_label=0),
    "f_score": sk.f1_score,
}


def rows(count=300, groups=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=rng, dtype=torch.float64)
    labels = (logits + torch.randn(count, generator=rng, dtype=torch.float64) > 0).long()
    return logits, labels, torch.randint(groups, (count,), generator=rng)


def dense(violation):
    """What a violation comes to, NaN where nothing was seen."""
    counts = violation.counts.expand(violation.sums.shape)
    return torch.where(counts > 0, violation.sums / counts, torch.nan)


@pytest.mark.parametrize("name", BINARY)
def test_every_rate_is_scikit_learns_in_every_group(name):
    logits, labels, groups = rows()
    found = getattr(rates, name)(groups=3).measure([(logits, labels, groups)])
    expected = [
        BINARY[name](labels[groups == g].numpy(), (logits[groups == g] > 0).long().numpy()) for g in range(3)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    everybody = getattr(rates, name)().measure([(logits, labels)])
    np.testing.assert_allclose(
        everybody, BINARY[name](labels.numpy(), (logits > 0).long().numpy()), atol=1e-12
    )


@pytest.mark.parametrize("name", [name for name in BINARY if name != "f_score"])
def test_the_soft_rate_is_the_rate_of_random_decisions(name):
    # A rate whose numerator and denominator are linear in decisions p: its soft form is the ratio of the
    # expected sums, when row i is positive with probability sigmoid(logit_i). Summed here over both outcomes.
    logits, labels, _ = rows(40)
    p = 1 / (1 + np.exp(-logits.numpy()))
    y = np.r_[labels, labels]
    weights, decided = np.r_[p, 1 - p], np.r_[np.ones(40, int), np.zeros(40, int)]
    confusion = sk.confusion_matrix(y, decided, sample_weight=weights)
    (tn, fp), (fn, tp) = confusion
    plain = {
        "positive_rate": (tp + fp) / 40, "negative_rate": (tn + fn) / 40, "recall": tp / (tp + fn),
        "true_positive_rate": tp / (tp + fn), "false_positive_rate": fp / (fp + tn),
        "true_negative_rate": tn / (fp + tn), "false_negative_rate": fn / (tp + fn),
        "true_positive_proportion": tp / 40, "false_positive_proportion": fp / 40,
        "true_negative_proportion": tn / 40, "false_negative_proportion": fn / 40,
        "accuracy": (tp + tn) / 40, "error_rate": (fp + fn) / 40, "precision": tp / (tp + fp),
        "false_discovery_rate": fp / (tp + fp), "false_omission_rate": fn / (fn + tn),
    }  # fmt: skip
    found = getattr(rates, name)().measure([(logits, labels)], hard=False)
    np.testing.assert_allclose(found, [plain[name]], atol=1e-12)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_f_score_of_any_beta(beta):
    logits, labels, _ = rows()
    expected = sk.fbeta_score(labels, logits > 0, beta=beta)
    assert rates.f_score(beta).measure([(logits, labels)]).item() == pytest.approx(expected, abs=1e-12)


def test_weighted_rows_count_as_often_as_they_weigh():
    logits, labels, groups = rows(60)
    weights = torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(1))
    often = [column.repeat_interleave(weights) for column in (logits, labels, groups)]
    for make in (rates.precision, rates.accuracy, rates.positive_rate, rates.roc_auc):
        torch.testing.assert_close(
            make(groups=3).measure([(logits, labels, groups, weights)]), make(groups=3).measure([often])
        )


def test_several_classes_have_a_rate_each():
    rng = torch.Generator().manual_seed(3)
    logits, labels = torch.randn(200, 4, generator=rng), torch.randint(4, (200,), generator=rng)
    chosen = logits.argmax(1)
    batch = [(logits, labels)]
    np.testing.assert_allclose(
        rates.recall(classes=4).measure(batch), sk.recall_score(labels, chosen, average=None), atol=1e-12
    )
    np.testing.assert_allclose(
        rates.precision(classes=4).measure(batch),
        sk.precision_score(labels, chosen, average=None),
        atol=1e-12,
    )
    assert rates.accuracy(classes=4).size == 1
    assert rates.accuracy(classes=4).measure(batch).item() == pytest.approx(sk.accuracy_score(labels, chosen))
    expected = sk.log_loss(labels, logits.double().softmax(1))
    assert rates.cross_entropy(classes=4).measure(batch).item() == pytest.approx(expected, rel=1e-6)
    soft = rates.recall(classes=4).measure(batch, hard=False)
    chances = logits.double().softmax(1)
    np.testing.assert_allclose(soft, [chances[labels == c, c].mean() for c in range(4)], rtol=1e-6)
    groups = torch.randint(2, (200,), generator=rng)
    by_both = rates.recall(classes=4, groups=2).measure([(logits, labels, groups)])
    for c, g in itertools.product(range(4), range(2)):
        chosen_rows = (labels == c) & (groups == g)
        assert by_both[c * 2 + g] == pytest.approx((chosen[chosen_rows] == c).double().mean().item())


def test_attributes_and_their_intersections():
    logits, labels, _ = rows(500)
    rng = torch.Generator().manual_seed(2)
    numbers = {
        "sex": torch.randint(2, (500,), generator=rng),
        "race": torch.randint(3, (500,), generator=rng),
    }
    frame = fairlearn.metrics.MetricFrame(
        metrics=sk.recall_score, y_true=labels.numpy(), y_pred=(logits > 0).numpy(),
        sensitive_features={name: each.numpy() for name, each in numbers.items()},
    )  # fmt: skip
    crossed = rates.recall(groups=rates.crossed(sex=2, race=3)).measure([(logits, labels, numbers)])
    np.testing.assert_allclose(crossed, frame.by_group.to_numpy(), atol=1e-12)
    each = rates.recall(groups={"sex": 2, "race": 3})
    expected = [
        sk.recall_score(labels[numbers[name] == g], logits[numbers[name] == g] > 0)
        for name, count in (("sex", 2), ("race", 3))
        for g in range(count)
    ]
    np.testing.assert_allclose(each.measure([(logits, labels, numbers)]), expected, atol=1e-12)
    assert each.names[3] == "recall, race 1"
    member = torch.stack([numbers[n] == g for n, c in (("sex", 2), ("race", 3)) for g in range(c)], dim=1)
    overlapping = rates.recall(groups=5).measure([(logits, labels, member)])
    np.testing.assert_allclose(overlapping, expected, atol=1e-12)


def test_entries_are_called_as_one_would_write_them():
    a, b, c = (rates.recall(groups=3)[i] for i in range(3))
    for expression, name in [
        (a - b, "recall, group 0 - recall, group 1"),
        (-(a - b), "-(recall, group 0 - recall, group 1)"),
        (a + 2 * b - 0.5, "recall, group 0 + 2 recall, group 1 - 0.5"),
        (a - (b - c), "recall, group 0 - (recall, group 1 - recall, group 2)"),
        ((a - b) / c, "(recall, group 0 - recall, group 1) / recall, group 2"),
        (1 - a, "1 - recall, group 0"),
        (1 - 2 * a, "1 - 2 recall, group 0"),
    ]:
        assert expression.names == (name,)
    pairs = rates.recall(groups=3).gap().names
    assert pairs == tuple(f"recall, group {i} - recall, group {j}" for i, j in [(0, 1), (0, 2), (1, 2)])
    many = sum((rates.recall(groups=3)[i % 3] for i in range(1, 30)), a)
    assert len(many.names[0]) == 120
    assert many.names[0].endswith("…")


def test_gap_is_fairlearns_difference():
    logits, labels, groups = rows(groups=4)
    frame = fairlearn.metrics.MetricFrame(
        metrics=fairlearn.metrics.false_positive_rate,
        y_true=labels.numpy(), y_pred=(logits > 0).numpy(), sensitive_features=groups.numpy(),
    )  # fmt: skip
    fpr, batch = rates.false_positive_rate(groups=4), [(logits, labels, groups)]
    assert fpr.gap().measure(batch).max().item() == pytest.approx(frame.difference(), abs=1e-12)
    assert fpr.gap("overall").measure(batch).max().item() == pytest.approx(
        frame.difference(method="to_overall"), abs=1e-12
    )
    assert (fpr.max() - fpr.min()).measure(batch).item() == pytest.approx(frame.difference(), abs=1e-12)
    assert (fpr.min() / fpr.max()).measure(batch).item() == pytest.approx(frame.ratio(), abs=1e-12)
    bounded = fpr.gap() <= 0.1
    assert bounded.size == 12
    assert isinstance(bounded.kind(), nupi.Inequality)
    assert dense(bounded.measure(batch)).max().item() == pytest.approx(frame.difference() - 0.1, abs=1e-12)


def test_expressions_are_what_numpy_makes_of_the_rates():
    logits, labels, groups = rows()
    batch = [(logits, labels, groups)]
    tpr, fpr = rates.recall(groups=3), rates.false_positive_rate(groups=3)
    a, b = (each.measure(batch).numpy() for each in (tpr, fpr))
    whole = rates.recall().measure(batch).numpy()
    for expression, expected in (
        (tpr + 2 * fpr - 0.5, a + 2 * b - 0.5),
        (1 - tpr, 1 - a),
        (tpr / fpr, a / b),
        (1 / tpr, 1 / a),
        (tpr / 2, a / 2),
        (-tpr[1:], -a[1:]),
        (tpr - rates.recall(), a - whole),
        (tpr[0] - tpr[2], a[:1] - a[2:]),
        (rates.stack(tpr, fpr[1]), np.r_[a, b[1]]),
        (abs(tpr - fpr), np.abs(a - b)),
        (tpr.max(), [a.max()]),
        (tpr.min(), [a.min()]),
    ):
        np.testing.assert_allclose(expression.measure(batch), expected, atol=1e-12)
    for constraint, expected in (
        (tpr.at_most(0.4), a - 0.4),
        (tpr >= 0.9, 0.9 - a),
        (tpr >= fpr, b - a),
        (tpr <= rates.recall() + 0.05, a - whole - 0.05),
        (tpr.equals(0.5), a - 0.5),
        ((tpr - fpr).equals(0.0), a - b),
        (abs(tpr - fpr) <= 0.2, np.r_[a - b - 0.2, b - a - 0.2]),
    ):
        np.testing.assert_allclose(dense(constraint.measure(batch)), expected, atol=1e-12)


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.1, 1.0, 3.0]))
def test_a_hinge_is_never_easier_to_meet_than_the_decision(seed, temperature):
    logits, labels, groups = rows(30, 2, seed)
    for constraint in (
        rates.recall(groups=2).gap() <= 0.1,
        rates.accuracy() >= 0.8,
        rates.false_positive_rate() <= 0.1,
        rates.recall(groups=2) >= rates.recall() - 0.05,
    ):
        measured = constraint.surrogate("hinge", temperature=temperature)(logits, labels, groups)
        soft, hard = dense(measured.soft), dense(measured.hard)
        assert torch.equal(soft.isnan(), hard.isnan())
        assert bool((soft >= hard - 1e-12)[~hard.isnan()].all())


def test_hinge_values_by_hand():
    logits, labels = torch.tensor([0.5, -2.0, 0.25]), torch.tensor([1, 1, 0])
    recall = rates.recall().at_least(1.0).surrogate("hinge")(logits, labels)
    # the lower bounds 1 - max(0, 1 - z) are 0.5 and -2
    torch.testing.assert_close(dense(recall.soft), torch.tensor([1 - (0.5 - 2) / 2]))
    alarms = rates.false_positive_rate().at_most(0.0).surrogate("hinge", temperature=0.5)(logits, labels)
    torch.testing.assert_close(dense(alarms.soft), torch.tensor([1.5]))


def test_a_smaller_temperature_comes_closer_to_the_decision():
    logits, labels, _ = rows()
    constraint = rates.precision() >= 0.9
    hard = dense(constraint(logits, labels).hard)
    far, near = (
        (dense(constraint.surrogate("sigmoid", temperature=t)(logits, labels).soft) - hard).abs()
        for t in (1.0, 1e-3)
    )
    assert near < 1e-3 < far


@pytest.mark.parametrize(
    "constraint",
    [
        rates.recall(groups=3).gap() <= 0.05,
        rates.precision(groups=3) >= 0.9,
        rates.f_score(2.0) >= 0.9,
        (rates.recall(groups=3).min() / rates.recall(groups=3).max()) >= 0.8,
        rates.cross_entropy(groups=3) <= 0.2,
        rates.roc_auc(groups=3) >= 0.99,
        rates.pr_auc(groups=3) >= 0.99,
        (1 / rates.precision_at_recall(0.8)) <= 1.1,
        rates.recall_at_precision(0.7) >= 0.9,
        (rates.accuracy() >= 0.9).surrogate("hinge", temperature=0.5),
        (rates.roc_auc() >= 0.99).surrogate("hinge"),
    ],
    ids=str,
)
def test_the_gradient_is_the_finite_difference_and_the_decisions_have_none(constraint):
    logits, labels, groups = rows(40)
    logits.requires_grad_()
    torch.autograd.gradcheck(lambda z: dense(constraint.soft(z, labels, groups)), (logits,))
    measured = constraint(logits, labels, groups)
    assert not measured.hard.sums.requires_grad
    assert dense(measured.soft).isfinite().all()


def test_ranking_rates_are_scikit_learns():
    logits, labels, groups = rows(400)
    logits = (logits * 4).round() / 4  # ties
    auc = rates.roc_auc(groups=3).measure([(logits, labels, groups)])
    expected = [sk.roc_auc_score(labels[groups == g], logits[groups == g]) for g in range(3)]
    np.testing.assert_allclose(auc, expected, atol=1e-12)
    weights = torch.rand(400, generator=torch.Generator().manual_seed(1)).double()
    area = rates.pr_auc(groups=3).measure([(logits, labels, groups, weights)])
    chosen = [groups == g for g in range(3)]
    expected = [
        sk.average_precision_score(labels[g], logits[g], sample_weight=weights[g].numpy()) for g in chosen
    ]
    np.testing.assert_allclose(area, expected, atol=1e-12)
    precision, recall, _ = sk.precision_recall_curve(labels, logits)  # recall falls along it
    for bound in (0.3, 0.8, 1.0):
        found = rates.precision_at_recall(bound).measure([(logits, labels)]).item()
        assert found == pytest.approx(precision[np.flatnonzero(recall >= bound)[-1]], abs=1e-12)
    for bound in (0.6, 0.9):
        found = rates.recall_at_precision(bound).measure([(logits, labels)]).item()
        assert found == pytest.approx(recall[:-1][precision[:-1] >= bound].max(initial=0), abs=1e-12)
    assert rates.recall_at_precision(1.0).measure([(torch.ones(4), torch.tensor([0, 1, 0, 1]))]).item() == 0


def test_the_soft_average_precision_counts_rows_above_by_sigmoids():
    logits, labels, _ = rows(30)
    precisions = []
    for i in range(30):
        if labels[i]:
            above = [1.0 if j == i else 1 / (1 + math.exp((logits[i] - logits[j]) / 0.5)) for j in range(30)]
            hits = sum(share for share, label in zip(above, labels, strict=True) if label)
            precisions.append(hits / sum(above))
    soft = (rates.pr_auc() >= 0.0).surrogate("sigmoid", temperature=0.5).soft(logits, labels)
    assert -dense(soft).item() == pytest.approx(sum(precisions) / len(precisions))
    near = (rates.pr_auc() >= 0.0).surrogate("sigmoid", temperature=1e-5).soft(logits, labels)
    assert -dense(near).item() == pytest.approx(sk.average_precision_score(labels, logits), abs=1e-6)
    with pytest.raises(ValueError, match="surrogate='hinge' does not bound PR AUC"):
        (rates.pr_auc() >= 0.5).surrogate("hinge").soft(logits, labels)


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 70))
def test_a_measure_does_not_depend_on_the_chunks(seed, chunk):
    logits, labels, groups = rows(60, 2, seed)
    for expression in (rates.precision(groups=2), rates.recall(groups=2).gap(), rates.roc_auc(groups=2)):
        whole = expression.measure([(logits, labels, groups)])
        parts = zip(*(column.split(chunk) for column in (logits, labels, groups)), strict=True)
        torch.testing.assert_close(expression.measure(parts), whole, equal_nan=True)


def test_what_a_batch_does_not_show_is_left_alone():
    constraint = rates.recall(groups=3) >= 0.9
    lagrangian = nupi.Lagrangian({"recall": constraint.kind(init=torch.tensor([1.0, 100.0, 2.0]))})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    logits = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    measured = constraint(
        logits, torch.tensor([1, 0, 1]), torch.tensor([0, 1, 2])
    )  # group 1 has no positive row
    lagrangian(logits.sum() * 0, {"recall": measured.soft}).backward()
    assert logits.grad[1] == 0
    assert logits.grad.isfinite().all()
    lagrangian.ascend(dual, {"recall": measured.hard})
    torch.testing.assert_close(lagrangian.multipliers["recall"], torch.tensor([0.99, 100.0, 1.99]))


def test_precision_of_no_decision_is_not_known():
    measured = (rates.precision() >= 0.9)(torch.tensor([-1.0, -2.0]), torch.tensor([1, 0]))
    assert measured.hard.counts.tolist() == [0]
    assert (rates.precision() >= 0.9).measure(
        [(torch.tensor([-1.0, -2.0]), torch.tensor([1, 0]))]
    ).counts == 0


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


def test_joined_sums_are_those_of_all_processes():
    constraint = rates.recall(groups=2).gap() <= 0.1
    logits, labels, groups = rows(60, 2)
    halves = [(logits[part], labels[part], groups[part]) for part in (slice(0, 30), slice(30, 60))]
    other = {kind: kind.of(rates.records.Rows(*halves[1]), None) for kind in constraint.records()}
    (there,) = other.values()
    joined = constraint.hard(*halves[0], join=lambda sums: sums + there)
    torch.testing.assert_close(dense(joined), dense(constraint.hard(logits, labels, groups)))
    with pytest.raises(ValueError, match="no sums"):
        (rates.roc_auc() >= 0.5).hard(logits, labels, join=lambda sums: sums)


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


def test_a_compiled_step_is_one_graph_and_the_same():
    fair = rates.recall(groups=3).gap() <= 0.02

    def step(logits, labels, groups):
        measured = fair(logits, labels, groups)
        return measured.soft.sums, measured.soft.counts, measured.hard.sums, measured.hard.counts

    eager, compiled = (f(*rows(50)) for f in (step, torch.compile(step, fullgraph=True, backend="aot_eager")))
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one, other)


def test_a_constraint_can_be_copied_and_sent_to_another_process():
    constraint = (rates.recall(groups=3).gap() <= 0.02).surrogate("hinge")
    there = pickle.loads(pickle.dumps(constraint))
    copied = copy.deepcopy(constraint)
    for each in (there, copied):
        assert torch.equal(dense(each(*rows(50)).soft), dense(constraint(*rows(50)).soft))
