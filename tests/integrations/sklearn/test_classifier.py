"""One model whose decisions meet the bounds; judged by fairlearn's and scikit-learn's own metrics."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equalized_odds_difference,
    false_positive_rate,
)
from integrations.sklearn.people import draw
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from torch import nn

import nupi
from nupi import rates
from nupi.integrations.sklearn import ConstrainedClassifier

X, Y, SENSITIVE = draw()
SEX = SENSITIVE["sex"]


def positive(labels):
    return (np.asarray(labels) == "yes").astype(int)


def classifier(constraints, **options):
    return ConstrainedClassifier(
        constraints, **{"max_steps": 150, "learning_rate": 0.1, "random_state": 0} | options
    )


@pytest.fixture(scope="module")
def free():
    return classifier(None).fit(X, Y)


def test_without_constraints_it_is_logistic_regression(free):
    exact = LogisticRegression(C=np.inf, max_iter=1000).fit(X, Y)
    assert free.predict_proba(X) == pytest.approx(exact.predict_proba(X), abs=5e-3)
    assert free.classes_.tolist() == ["no", "yes"]


def test_one_hidden_layer_may_be_a_number():
    number, tuple_ = (
        classifier(None, hidden_layer_sizes=hidden, max_steps=2).fit(X, Y) for hidden in (16, (16,))
    )
    assert number.predict_proba(X) == pytest.approx(tuple_.predict_proba(X))


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


def test_early_stopping_looks_at_rows_that_are_held_out():
    model = classifier(
        {"recall": 0.85}, hidden_layer_sizes=(8,), early_stopping=True, n_iter_no_change=10, max_steps=2_000
    ).fit(X, Y)
    assert model.n_steps_ < 2_000
    assert model.feasible_
    new, labels, _ = draw(20_000, seed=1)
    assert recall_score(labels, model.predict(new), pos_label="yes") > 0.8


def test_confidence_keeps_a_margin_for_new_rows():
    model = classifier({"recall": 0.8}, early_stopping=True, validation_fraction=0.4, confidence=0.9).fit(
        X, Y
    )
    new, labels, _ = draw(20_000, seed=1)
    assert model.feasible_
    assert recall_score(labels, model.predict(new), pos_label="yes") >= 0.8
    with pytest.raises(ValueError, match="early_stopping=True"):
        classifier({"recall": 0.8}, confidence=0.9).fit(X, Y)


def test_a_module_of_ones_own_is_copied_and_trained():
    own = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    before = [each.clone() for each in own.parameters()]
    model = classifier({"demographic_parity": 0.05}, module=own).fit(X, Y, sensitive_features=SEX)
    assert all(torch.equal(a, b) for a, b in zip(before, own.parameters(), strict=True))
    assert (
        demographic_parity_difference(positive(Y), positive(model.predict(X)), sensitive_features=SEX) <= 0.05
    )
    assert np.array_equal(model.decision_function(X), model.decision_function(X))  # no dropout in use
    made = classifier(None, module=nn.Linear).fit(X, Y)
    assert made.score(X, Y) > 0.8
    with pytest.raises(ValueError, match=r"module gave \(800, 3\).*must give \(800, 1\)"):
        classifier(None, module=nn.Linear(5, 3)).fit(X, Y)
    with pytest.raises(TypeError, match="module must be a torch module"):
        classifier(None, module="mlp").fit(X, Y)


def test_the_same_seed_gives_the_same_model_and_touches_nobodys_random_numbers():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    models = [
        classifier(
            {"recall": 0.9}, hidden_layer_sizes=(8,), batch_size=100, max_steps=50, random_state=seed
        ).fit(X, Y)
        for seed in (3, 3, 4)
    ]
    assert torch.equal(state, torch.get_rng_state())
    one, same, other = (model.decision_function(X) for model in models)
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_a_fitted_model_survives_pickle_and_goes_on():
    model = classifier({"demographic_parity": 0.05}, batch_size=100).partial_fit(
        X, Y, classes=["no", "yes"], sensitive_features=SEX
    )
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.decision_function(X), again.decision_function(X))
    for each in (model, again):
        each.partial_fit(X, Y, sensitive_features=SEX)
    assert np.array_equal(model.decision_function(X), again.decision_function(X))
    assert not hasattr(clone(model), "module_")


def test_partial_fit_holds_the_bound_on_a_stream():
    model = classifier({"demographic_parity": 0.05}, batch_size=250, learning_rate=0.02)
    for seed in range(40):
        rows, labels, sensitive = draw(1_000, seed=100 + seed)
        model.partial_fit(rows, labels, classes=["no", "yes"], sensitive_features=sensitive["sex"])
    new, labels, sensitive = draw(20_000, seed=1)
    gap = demographic_parity_difference(
        positive(labels), positive(model.predict(new)), sensitive_features=sensitive["sex"]
    )
    assert gap <= 0.08  # new rows, and a stream
    assert model.score(new, labels) > 0.75
    assert model.n_steps_ == 160


def test_partial_fit_knows_the_groups_that_a_categorical_names():
    sexes = pd.Series(pd.Categorical(SEX, categories=["f", "m", "x"]), name="sex")
    model = classifier({"demographic_parity": 0.2}).partial_fit(
        X, Y, classes=["no", "yes"], sensitive_features=sexes
    )
    assert model.multipliers_["demographic_parity"].shape == (3,)
    model.partial_fit(X[:2], Y[:2], sensitive_features=pd.Series(["x", "f"], name="sex"))
    with pytest.raises(ValueError, match=r"'y'.*the first rows did not have"):
        model.partial_fit(X[:2], Y[:2], sensitive_features=pd.Series(["y", "f"], name="sex"))
    with pytest.raises(ValueError, match="every call, or in none"):
        model.partial_fit(X[:2], Y[:2])
    with pytest.raises(ValueError, match="differs from the first call"):
        model.partial_fit(X[:2], Y[:2], classes=["a", "b"], sensitive_features=sexes[:2])


@pytest.mark.parametrize(
    ("constraints", "error", "says"),
    [
        (["recall"], TypeError, "must map names to bounds"),
        (
            {"fairness": 0.1},
            ValueError,
            "'fairness', which is not a known constraint; choose from demographic_parity",
        ),
        ({"recall": 1.5}, ValueError, "between 0 and 1"),
        ({"recall": "high"}, ValueError, "must be a finite number"),
        ({"recall": (None, None)}, ValueError, r"a pair \(lowest, highest\)"),
        ({"recall": (0.7, 0.3)}, ValueError, "its lowest value above its highest"),
        ({"recall": {"yes": 0.5}}, ValueError, "pos_label"),
        ({"demographic_parity": 0.1}, ValueError, "sensitive_features=None"),
    ],
)
def test_bad_constraints_are_named(constraints, error, says):
    with pytest.raises(error, match=says):
        classifier(constraints).fit(X, Y)


@pytest.mark.parametrize(
    ("sensitive", "says"),
    [
        (SEX[:-1], r"shape \(799,\), but X has 800 rows"),
        (SEX.where(SEX == "f"), "missing values"),
        (pd.Series(["f"] * len(X), name="sex"), "'sex'.* one value only"),
        ({}, "no column"),
    ],
)
def test_bad_sensitive_features_are_named(sensitive, says):
    with pytest.raises(ValueError, match=says):
        classifier({"demographic_parity": 0.1}).fit(X, Y, sensitive_features=sensitive)


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match="pos_label='maybe'"):
        classifier(None, pos_label="maybe").fit(X, Y)
    for options in ({"max_steps": 0}, {"max_steps": 2.5}, {"batch_size": 0}, {"batch_size": True}):
        ((name, value),) = options.items()
        with pytest.raises(ValueError, match=f"{name}={value} must be a whole number"):
            classifier(None, **options).fit(X, Y)
    with pytest.raises(TypeError, match=r"dual='fast' is neither"):
        classifier({"recall": 0.8}, dual="fast").fit(X, Y)
    with pytest.raises(ValueError, match=r"all are zero|at least one non-zero"):
        classifier(None).fit(X, Y, sample_weight=np.zeros(len(X)))


def test_a_dual_of_ones_own_is_used():
    made = []

    def dual(multipliers):
        made.append(torch.optim.SGD(multipliers, lr=0.5, maximize=True))
        return made[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = classifier({"recall": 0.99}, dual=dual, max_steps=20).fit(X, Y)
    assert len(made) == 1
    assert model.multipliers_["recall"].item() > 0


@pytest.mark.parametrize("dual", ["self_tuned", "fixed"])
@pytest.mark.parametrize("again", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])
def test_a_copy_goes_on_as_the_model_does(dual, again):
    stream = classifier({"demographic_parity": 0.05}, dual=dual, batch_size=100)
    stream.partial_fit(X, Y, classes=["no", "yes"], sensitive_features=SEX)
    other = again(stream)
    for each in (stream, other):
        each.partial_fit(X, Y, sensitive_features=SEX)
        each.partial_fit(X, Y, sensitive_features=SEX)
    assert np.array_equal(stream.decision_function(X), other.decision_function(X))


def test_fixed_gains_are_there_by_name():
    model = classifier({"demographic_parity": 0.05}, dual="fixed").fit(X, Y, sensitive_features=SEX)
    assert isinstance(model._state.dual, nupi.NuPI)
    gap = demographic_parity_difference(positive(Y), positive(model.predict(X)), sensitive_features=SEX)
    assert gap <= 0.05
    assert model.score(X, Y) > 0.75


def test_rows_that_come_after_a_fit_move_the_model():
    model = classifier({"recall": 0.8}, max_steps=40).fit(X, Y)
    before = model.score(X, Y)
    for _ in range(20):
        model.partial_fit(X, np.where(Y == "yes", "no", "yes"))  # the contrary of what came
    assert model.score(X, Y) < before - 0.2


def test_a_last_batch_of_one_row_joins_the_one_before():
    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = classifier({"recall": 0.8}, module=norm, batch_size=47, max_steps=34).fit(
        X, Y
    )  # 800 = 17 * 47 + 1
    assert model.feasible_
    stream = classifier(None, module=norm, batch_size=47).partial_fit(X, Y, classes=["no", "yes"])
    assert stream.n_steps_ == 17


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


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_stated_confidence_holds_where_rows_come_from_though_the_multipliers_saw_the_held_out_ones():
    """In 36 of 40 draws when it was written, and in 20 of 40 without the margin."""

    def sample(count, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(count, 5))
        return X, (X.sum(1) + 1.5 * rng.normal(size=count) > 0.5).astype(int)

    everybody, labels = sample(200_000, 99)
    kept = {None: 0, 0.9: 0}
    for confidence in kept:
        for seed in range(40):
            model = ConstrainedClassifier(
                {"false_positive_rate": 0.1},
                early_stopping=True,
                validation_fraction=0.4,
                confidence=confidence,
                max_steps=300,
                learning_rate=0.03,
                random_state=seed,
            ).fit(*sample(1_000, seed))
            kept[confidence] += model.predict(everybody)[labels == 0].mean() <= 0.1
    assert kept[0.9] >= 31  # 36 expected, with a standard deviation of 1.9
    assert kept[None] <= 29  # half: what is met on 240 rows is met by luck
