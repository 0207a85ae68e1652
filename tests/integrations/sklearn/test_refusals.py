"""What the classifier refuses, by name."""

import numpy as np
import pandas as pd
import pytest
from integrations.sklearn.classifiers import SEX, X, Y, classifier


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
