"""What is made of rates: expressions, constraints on them, and their soft forms, against fairlearn and plain loops."""

import copy
import pickle

import fairlearn.metrics
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rates.samples import dense, rows

import nupi
from nupi import rates


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
