"""Model selection under constraints: the scorer, grid searches, pipelines, metadata routing."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from fairlearn.metrics import demographic_parity_difference
from integrations.sklearn.people import draw
from sklearn.compose import make_column_transformer
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from nupi.integrations.sklearn import ConstrainedClassifier, constrained_scorer
from nupi.integrations.sklearn.scorer import ConstrainedScore

X, Y, SENSITIVE = draw(800)
QUICK = {"max_steps": 80, "learning_rate": 0.1, "random_state": 0}
PARITY = {"demographic_parity": 0.1}


def score(constraints, metric=accuracy_score, **options):
    return ConstrainedScore(
        constraints, metric, **{"tolerance": 0.0, "pos_label": None, "intersections": False} | options
    )


def test_a_score_is_the_metric_or_minus_the_violation():
    rng = np.random.default_rng(0)
    decided = np.where(rng.random(len(Y)) < 0.7, Y, "no")
    truth, given = (Y == "yes").astype(int), (decided == "yes").astype(int)
    recall = recall_score(truth, given)
    met, missed = score({"recall": recall - 0.1}), score({"recall": recall + 0.1})
    assert met(Y, decided) == accuracy_score(Y, decided)
    assert missed(Y, decided) == pytest.approx(-0.1)
    assert score({"recall": recall + 0.1}, tolerance=0.11)(Y, decided) == accuracy_score(Y, decided)
    gap = demographic_parity_difference(truth, given, sensitive_features=SENSITIVE)
    crossed = score({"demographic_parity": gap - 0.01}, intersections=True)
    assert crossed(Y, decided, sensitive_features=SENSITIVE) == pytest.approx(-0.01)
    weights = rng.random(len(Y))
    weighted = recall_score(truth, given, sample_weight=weights)
    assert score({"recall": weighted + 0.1})(Y, decided, sample_weight=weights) == pytest.approx(-0.1)
    assert score({"recall": weighted - 0.1}, balanced_accuracy_score)(
        Y, decided, sample_weight=weights
    ) == balanced_accuracy_score(Y, decided, sample_weight=weights)
    other = recall_score(Y, decided, pos_label="no")
    assert score({"recall": other}, pos_label="no")(Y, decided) == accuracy_score(Y, decided)
    with pytest.raises(ValueError, match="give pos_label"):
        met(["no"], ["no"])


def test_a_grid_search_with_fit_parameters_alone():
    search = GridSearchCV(
        ConstrainedClassifier(PARITY, **QUICK),
        {"weight_decay": [0.0, 0.1]},
        scoring=constrained_scorer({"recall": 0.5}),
        cv=2,
        error_score="raise",
    )
    search.fit(X, Y, sensitive_features=SENSITIVE["sex"])
    gap = demographic_parity_difference(
        Y == "yes", search.predict(X) == "yes", sensitive_features=SENSITIVE["sex"]
    )
    assert gap <= 0.1


def test_metadata_routing_gives_folds_their_groups():
    with sklearn.config_context(enable_metadata_routing=True):
        model = ConstrainedClassifier(**QUICK).set_fit_request(sensitive_features=True, sample_weight=True)
        scorer = constrained_scorer({"demographic_parity": 0.15}).set_score_request(sensitive_features=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model),
            {"constrainedclassifier__constraints": [None, {"demographic_parity": 0.05}]},
            scoring=scorer,
            cv=2,
            error_score="raise",
        )
        search.fit(X, Y, sensitive_features=SENSITIVE["sex"], sample_weight=np.ones(len(Y)))
    free, fair = search.cv_results_["mean_test_score"]
    assert free < 0 < fair  # without the constraint the folds violate it
    assert search.best_params_ == {"constrainedclassifier__constraints": {"demographic_parity": 0.05}}


def test_cross_validation_beside_an_ordinary_metric():
    with sklearn.config_context(enable_metadata_routing=True):
        model = ConstrainedClassifier(PARITY, **QUICK).set_fit_request(sensitive_features=True)
        found = cross_validate(
            model,
            X,
            Y,
            scoring={"accuracy": "accuracy"},
            cv=2,
            params={"sensitive_features": SENSITIVE["race"]},
        )
    assert found["test_accuracy"].min() > 0.6


def test_a_pipeline_from_a_frame_with_words():
    frame = X.assign(job=pd.Series(np.where(X["v"] > 0, "clerk", "smith")))
    columns = make_column_transformer((OneHotEncoder(), ["job"]), remainder="passthrough")
    pipe = make_pipeline(columns, ConstrainedClassifier(PARITY, **QUICK))
    pipe.fit(frame, Y, constrainedclassifier__sensitive_features=SENSITIVE[["sex"]])
    assert pipe.score(frame, Y) > 0.7
    assert pipe[-1].feasible_
