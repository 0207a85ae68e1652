"""Confidence limits against scipy, and what they promise against simulated data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nupi import rates

SCIPY = {"exact": "exact", "wilson": "wilson"}


@settings(max_examples=settings.default.max_examples)
@given(
    rows=st.integers(1, 5000),
    share=st.floats(0, 1),
    tail=st.sampled_from([0.05, 0.01, 1e-4]),
    method=st.sampled_from(["exact", "wilson"]),
)
def test_limits_are_scipys(rows, share, tail, method):
    counted = round(share * rows)
    found = rates.limits(
        torch.tensor([counted], dtype=torch.float64), torch.tensor([rows], dtype=torch.float64), tail, method
    )
    interval = stats.binomtest(counted, rows).proportion_ci(1 - 2 * tail, method=SCIPY[method])
    np.testing.assert_allclose([end.item() for end in found], interval, atol=1e-9)


def dense(violation):
    return (violation.sums / violation.counts).numpy()


def test_one_rate_has_its_one_sided_limit():
    logits, labels = torch.where(torch.arange(200) < 20, 1.0, -1.0), torch.zeros(200, dtype=torch.long)
    sure = rates.false_positive_rate().at_most(0.05).confident(0.95)
    upper = stats.beta.ppf(0.95, 21, 180)
    assert dense(sure.measure([(logits, labels)])).item() == pytest.approx(upper - 0.05, abs=1e-12)
    # two constraints are twice as many ways to be wrong, and ten models to choose from ten times as many
    both = rates.stack(rates.false_positive_rate(), rates.positive_rate()).at_most(0.05).confident(0.95)
    assert dense(both.measure([(logits, labels)]))[0] == pytest.approx(stats.beta.ppf(0.975, 21, 180) - 0.05)
    many = rates.false_positive_rate().at_most(0.05).confident(0.95, comparisons=10)
    assert dense(many.measure([(logits, labels)])).item() == pytest.approx(
        stats.beta.ppf(0.995, 21, 180) - 0.05
    )


def test_a_gap_uses_both_limits_of_each_group():
    groups = torch.arange(400) % 2
    logits = torch.where(torch.arange(400) < 100, 1.0, -1.0)
    sure = (rates.positive_rate(groups=2).gap() <= 0.1).confident(0.95)
    low, high = stats.binomtest(50, 200).proportion_ci(1 - 2 * 0.05 / 4, method="exact")
    np.testing.assert_allclose(
        dense(sure.measure([(logits, None, groups)])), [high - low - 0.1] * 2, atol=1e-12
    )


@pytest.mark.parametrize("method", ["exact", "wilson"])
def test_what_is_promised_is_kept_on_simulated_data(method):
    # Groups with rates on both sides of a gap of 0.1; how often does a gap that is too large pass for met?
    rng = np.random.default_rng(0)
    constraint = (rates.positive_rate(groups=3).gap() <= 0.1).confident(0.9, method=method)
    truth = np.array([0.30, 0.36, 0.41])  # the largest gap is 0.11: the verdict "met" is wrong
    groups = torch.arange(600) % 3
    wrong = 0
    for _ in range(400):
        logits = torch.tensor(np.where(rng.random(600) < truth[groups], 1.0, -1.0))
        wrong += bool((dense(constraint.measure([(logits, None, groups)])) <= 0).all())
    assert wrong / 400 <= 0.1
    # and the limit of the gap covers the true one, at least as often as promised
    covered = 0
    for _ in range(400):
        logits = torch.tensor(np.where(rng.random(600) < truth[groups], 1.0, -1.0))
        upper = dense(constraint.measure([(logits, None, groups)])) + 0.1
        gaps = np.array([truth[i] - truth[j] for i, j in ((0, 1), (0, 2), (1, 2))])
        covered += bool((upper >= np.r_[gaps, -gaps]).all())
    assert covered / 400 >= 0.9


@pytest.mark.parametrize("p", [0.02, 0.3])
def test_the_exact_limit_of_one_rate_is_missed_as_often_as_allowed_and_no_oftener(p):
    rng = np.random.default_rng(1)
    counted = torch.tensor(rng.binomial(500, p, size=4000), dtype=torch.float64)
    _, upper = rates.limits(counted, torch.full_like(counted, 500.0), 0.05)
    missed = (upper < p).double().mean().item()
    assert missed <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5
    assert missed >= 0.01  # not needlessly wide


def test_the_margin_shrinks_with_the_rows():
    constraint = (rates.accuracy() >= 0.8).confident(0.95)
    margins = []
    for count in (100, 1000, 10_000):
        logits, labels = torch.ones(count), (torch.arange(count) % 10 > 0).long()
        margins.append(dense(constraint.measure([(logits, labels)])).item() + 0.1)
    assert margins[0] > 2 * margins[1] > 4 * margins[2] > 0


def test_what_has_no_limits_is_refused():
    recall = rates.recall(groups=2)
    with pytest.raises(ValueError, match="bound their gap instead"):
        (recall[0] - recall[1]).equals(0.0).confident()
    with pytest.raises(ValueError, match="the F-score is not a share of rows"):
        (rates.f_score() >= 0.5).confident()
    with pytest.raises(ValueError, match="ROC AUC"):
        (rates.roc_auc() >= 0.5).confident()
    with pytest.raises(ValueError, match=r"confidence=1\.0"):
        (recall >= 0.5).confident(1.0)
    with pytest.raises(ValueError, match="comparisons=0"):
        (recall >= 0.5).confident(comparisons=0)
    with pytest.raises(ValueError, match="exact, wilson"):
        (recall >= 0.5).confident(method="normal")
    with pytest.raises(ValueError, match="counts are not whole numbers"):
        (rates.accuracy() >= 0.5).confident()(torch.ones(2), torch.ones(2), weights=torch.tensor([0.5, 1.0]))


def test_soft_violations_have_no_margin():
    logits, labels = torch.randn(50), torch.randint(2, (50,))
    plain = rates.accuracy() >= 0.5
    assert torch.equal(plain.soft(logits, labels).sums, plain.confident().soft(logits, labels).sums)
