"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from nupi.integrations.sklearn import ConstrainedClassifier

QUICK = {"max_steps": 30, "learning_rate": 0.1, "random_state": 0}


def expected_failures(estimator):
    if estimator.early_stopping:
        return {
            "check_sample_weight_equivalence_on_dense_data": "a row that comes twice may be held out once, so that "
            "which rows are held out is not the same"
        }
    return {}


@parametrize_with_checks(
    [
        ConstrainedClassifier(**QUICK),
        ConstrainedClassifier({"error_rate": 0.9}, **QUICK),
        ConstrainedClassifier({"error_rate": 0.9}, hidden_layer_sizes=(8,), early_stopping=True, **QUICK),
    ],
    expected_failed_checks=expected_failures,
)
def test_an_estimator_like_any_other(estimator, check):
    check(estimator)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # check_estimator warns of each check that it leaves out
def test_as_it_comes_it_passes_every_check():
    check_estimator(ConstrainedClassifier())
