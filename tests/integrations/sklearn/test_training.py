"""How the classifier is trained: by which module and dual optimizer, on which rows, and when it ends."""

import warnings

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference
from integrations.sklearn.classifiers import SEX, X, Y, classifier, positive
from integrations.sklearn.people import draw
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import recall_score
from torch import nn

import nupi
from nupi.integrations.sklearn import ConstrainedClassifier


def test_one_hidden_layer_may_be_a_number():
    number, tuple_ = (
        classifier(None, hidden_layer_sizes=hidden, max_steps=2).fit(X, Y) for hidden in (16, (16,))
    )
    assert number.predict_proba(X) == pytest.approx(tuple_.predict_proba(X))


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


def test_fixed_gains_are_there_by_name():
    model = classifier({"demographic_parity": 0.05}, dual="fixed").fit(X, Y, sensitive_features=SEX)
    assert isinstance(model._state.dual, nupi.NuPI)
    gap = demographic_parity_difference(positive(Y), positive(model.predict(X)), sensitive_features=SEX)
    assert gap <= 0.05
    assert model.score(X, Y) > 0.75


def test_a_last_batch_of_one_row_joins_the_one_before():
    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = classifier({"recall": 0.8}, module=norm, batch_size=47, max_steps=34).fit(
        X, Y
    )  # 800 = 17 * 47 + 1
    assert model.feasible_
    stream = classifier(None, module=norm, batch_size=47).partial_fit(X, Y, classes=["no", "yes"])
    assert stream.n_steps_ == 17


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
