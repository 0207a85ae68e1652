import pytest
from examples import neyman_pearson
from scipy.stats import norm


def test_false_alarms_are_within_their_level_on_new_rows_and_the_recall_is_nearly_the_best_possible():
    distance = float(neyman_pearson.SHIFT.norm())
    best = norm.cdf(distance - norm.ppf(0.95))
    assert neyman_pearson.best_power() == pytest.approx(best, abs=1e-5)
    recall, alarms = neyman_pearson.judge(neyman_pearson.train(10_000, 200))
    assert alarms <= 0.05
    assert best - 0.04 < recall < best
