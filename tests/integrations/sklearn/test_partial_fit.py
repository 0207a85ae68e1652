"""A classifier that goes on with the rows that come, also after it was copied or pickled."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import demographic_parity_difference
from integrations.sklearn.classifiers import SEX, X, Y, classifier, positive
from integrations.sklearn.people import draw
from sklearn.base import clone


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


def test_rows_that_come_after_a_fit_move_the_model():
    model = classifier({"recall": 0.8}, max_steps=40).fit(X, Y)
    before = model.score(X, Y)
    for _ in range(20):
        model.partial_fit(X, np.where(Y == "yes", "no", "yes"))  # the contrary of what came
    assert model.score(X, Y) < before - 0.2
