"""Classifiers under constraints, with the interface of scikit-learn: `pip install 'nupi[sklearn]'`.

    from nupi.integrations.sklearn import ConstrainedClassifier

    model = ConstrainedClassifier(constraints={"equalized_odds": 0.02, "false_positive_rate": 0.05})
    model.fit(X, y, sensitive_features=frame[["sex", "race"]])

`docs/integrations/sklearn.md` is the guide.
"""

try:
    import sklearn as _sklearn  # noqa: F401  (whether it is there)
except ImportError:
    raise ImportError("nupi.integrations.sklearn needs scikit-learn: pip install 'nupi[sklearn]'") from None

from nupi.integrations.sklearn.classifier import ConstrainedClassifier
from nupi.integrations.sklearn.scorer import constrained_scorer

__all__ = ["ConstrainedClassifier", "constrained_scorer"]
