"""Every rate of the catalogue, in groups and classes, against scikit-learn, fairlearn and plain loops."""

import itertools
import math

import fairlearn.metrics
import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from rates.samples import dense, rows

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
