"""One model whose decisions meet the bounds; judged by fairlearn's and scikit-learn's own metrics."""

import numpy as np
import pytest
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equalized_odds_difference,
    false_positive_rate,
)
from integrations.sklearn.classifiers import SENSITIVE, SEX, X, Y, classifier, positive
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score

from nupi import rates


@pytest.fixture(scope="module")
def free():
    return classifier(None).fit(X, Y)


def test_without_constraints_it_is_logistic_regression(free):
    exact = LogisticRegression(C=np.inf, max_iter=1000).fit(X, Y)
    assert free.predict_proba(X) == pytest.approx(exact.predict_proba(X), abs=5e-3)
    assert free.classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_equalized_odds_and_a_rate_are_met_as_decisions(free, hidden):
    bounds = {"equalized_odds": 0.02, "false_positive_rate": 0.1}
    model = classifier(bounds, hidden_layer_sizes=hidden).fit(X, Y, sensitive_features=SEX)
    decided, truth = positive(model.predict(X)), positive(Y)
    gap = equalized_odds_difference(truth, decided, sensitive_features=SEX)
    alarms = false_positive_rate(truth, decided)
    assert equalized_odds_difference(truth, positive(free.predict(X)), sensitive_features=SEX) > 0.06
    assert gap <= 0.02
    assert alarms <= 0.1
    assert model.feasible_
    assert model.violations_ == pytest.approx(
        {"equalized_odds": gap - 0.02, "false_positive_rate": alarms - 0.1}
    )
    assert model.violations(X, Y, sensitive_features=SEX) == pytest.approx(model.violations_)
    assert model.score(X, Y) > 0.75
    assert model.predict_proba(X).argmax(1).tolist() == decided.tolist()


def test_of_several_attributes_each_is_bounded():
    model = classifier({"demographic_parity": 0.05}).fit(X, Y, sensitive_features=SENSITIVE)
    decided = positive(model.predict(X))
    for column in SENSITIVE:
        gap = demographic_parity_difference(positive(Y), decided, sensitive_features=SENSITIVE[column])
        assert gap <= 0.05
    assert model.multipliers_["demographic_parity"].shape == (1 + 3,)
    assert model.score(X, Y) > 0.7


def test_of_intersections_every_combination_is_bounded():
    model = classifier({"demographic_parity": 0.06}, intersections=True).fit(
        X, Y, sensitive_features=SENSITIVE
    )
    gap = demographic_parity_difference(positive(Y), positive(model.predict(X)), sensitive_features=SENSITIVE)
    assert gap <= 0.06
    assert model.multipliers_["demographic_parity"].shape == (6 * 5 // 2,)
    assert model.violations_["demographic_parity"] == pytest.approx(gap - 0.06)


def test_frames_arrays_and_mappings_are_the_same():
    models = [
        classifier({"demographic_parity": 0.05}, max_steps=60).fit(X, Y, sensitive_features=given)
        for given in (SENSITIVE, {"sex": SEX, "race": SENSITIVE["race"].to_numpy()}, SENSITIVE.to_numpy())
    ]
    for other in models[1:]:
        assert np.array_equal(models[0].decision_function(X), other.decision_function(X))


def test_a_weight_of_two_is_a_row_that_comes_twice():
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 3, size=len(X))
    twice = np.repeat(np.arange(len(X)), weights)
    bounds = {"demographic_parity": 0.05, "recall_by_group": 0.5}
    weighted = classifier(bounds, batch_size=10_000).fit(X, Y, sensitive_features=SEX, sample_weight=weights)
    repeated = classifier(bounds, batch_size=10_000).fit(
        X.iloc[twice], Y[twice], sensitive_features=SEX.iloc[twice]
    )
    assert weighted.decision_function(X) == pytest.approx(repeated.decision_function(X), abs=1e-6)
    rate = MetricFrame(
        metrics=lambda _, p, sample_weight: np.average(p, weights=sample_weight),
        y_true=positive(Y),
        y_pred=positive(weighted.predict(X)),
        sensitive_features=SEX,
        sample_params={"sample_weight": weights},
    )
    assert rate.difference() <= 0.05


def test_the_positive_class_is_the_one_that_is_named():
    model = classifier({"recall": 0.9}, pos_label="no").fit(X, Y)
    assert recall_score(Y, model.predict(X), pos_label="no") >= 0.9
    assert model.score(X, Y) > 0.75
    assert ((model.decision_function(X) > 0) == (model.predict(X) == "yes")).all()
    other = classifier({"recall": 0.9}).fit(X, Y)
    assert recall_score(Y, other.predict(X), pos_label="yes") >= 0.9
    assert recall_score(Y, other.predict(X), pos_label="no") < 0.9


def test_a_rate_from_both_sides_and_a_constraint_of_ones_own():
    own = rates.positive_rate(groups={"sex": 2})[0] >= 0.3
    model = classifier({"positive_rate": (0.25, 0.35), "women": own}).fit(X, Y, sensitive_features=SEX)
    decided = positive(model.predict(X))
    assert 0.25 <= decided.mean() <= 0.35
    assert decided[SEX == "f"].mean() >= 0.3
    assert model.score(X, Y) > 0.65


def test_classes_by_name():
    data = load_iris(as_frame=True)
    flowers, labels = data.data[["sepal length (cm)", "sepal width (cm)"]], data.target_names[data.target]
    model = classifier({"recall": {"virginica": 0.9}}).fit(flowers, labels)
    found = dict(zip(model.classes_, recall_score(labels, model.predict(flowers), average=None), strict=True))
    usual = classifier(None).fit(flowers, labels)
    before = dict(
        zip(usual.classes_, recall_score(labels, usual.predict(flowers), average=None), strict=True)
    )
    assert before["virginica"] < 0.9 <= found["virginica"]
    every = classifier({"recall": 0.6}).fit(flowers, labels)
    assert recall_score(labels, every.predict(flowers), average=None).min() >= 0.6
    assert every.decision_function(flowers).shape == (150, 3)


def test_parity_of_several_classes_is_within_each_class():
    three = np.where(X["v"] + X["w"] > 1.5, "high", np.where(X["v"] + X["w"] > 0, "mid", "low"))
    model = classifier({"demographic_parity": 0.08}).fit(X, three, sensitive_features=SEX)
    decided = model.predict(X)
    for label in model.classes_:
        shares = [(decided[sex == SEX] == label).mean() for sex in ("f", "m")]
        assert abs(shares[0] - shares[1]) <= 0.08
    assert model.multipliers_["demographic_parity"].shape == (3,)


def test_what_cannot_be_met_is_said():
    with pytest.warns(ConvergenceWarning, match="no model met all constraints.*Loosen the bounds"):
        model = classifier({"recall": 1.0, "false_positive_rate": 0.0}, max_steps=40).fit(X, Y)
    assert not model.feasible_
    assert max(model.violations_.values()) > 0


def test_a_group_that_has_no_positive_rows_is_left_out_and_named():
    labels = np.where(SENSITIVE["race"] == "c", "no", Y)
    with pytest.warns(
        UserWarning,
        match="'equal_opportunity': no rows for true positive rate, race 0 - .*race 2.*; .*race 1 - ",
    ):
        model = classifier({"equal_opportunity": 0.05}, max_steps=100).fit(
            X, labels, sensitive_features=SENSITIVE["race"]
        )
    assert model.multipliers_["equal_opportunity"].shape == (1,)
    assert model.feasible_


def test_new_rows_without_some_groups_are_measured_by_those_that_are_there():
    race = SENSITIVE["race"]
    last_two = rates.positive_rate(groups={"race": 3})
    bounds = {"demographic_parity": 0.1, "order": last_two[1] - last_two[2] <= 0.05}
    model = classifier(bounds).fit(X, Y, sensitive_features=race)
    some = (race != "a").to_numpy()
    found = model.violations(X[some], Y[some], sensitive_features=race[some])
    share = positive(model.predict(X))
    b, c = (share[(race == name).to_numpy()].mean() for name in "bc")
    assert found == pytest.approx({"demographic_parity": abs(b - c) - 0.1, "order": b - c - 0.05})
    one = (race == "b").to_numpy()
    assert model.violations(X[one], Y[one], sensitive_features=race[one]) == {}
    strangers = race.where(race != "c", "d")
    with pytest.raises(IndexError, match="runs from 0 to 3, but the groups are 0 to 2"):
        model.violations(X[~one], Y[~one], sensitive_features=strangers[~one])
    model.set_params(constraints={"demographic_parity": 0.1})
    d = share[(strangers == "d").to_numpy()].mean()
    gap = model.violations(X[~one], Y[~one], sensitive_features=strangers[~one])["demographic_parity"]
    a = share[(race == "a").to_numpy()].mean()
    assert gap == pytest.approx(abs(a - d) - 0.1)
