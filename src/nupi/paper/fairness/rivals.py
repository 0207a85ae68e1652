"""What a user ships: accuracy and parity on unseen rows, by fairlearn's metrics, beside its own solver.

`ExponentiatedGradient` (Agarwal et al., 2018) solves the same constraint, each group's rate of positive
predictions against everybody's, by re-weighting the rows for an ordinary estimator again and again. What
comes out is a lottery over the estimators it has fitted.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nupi.paper.data import adult
from nupi.rates import StatisticalParity

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = "1"
SHUFFLES = 200


def exponentiated_gradient(*, estimator: str, bound: float, rounds: int) -> dict[str, Any]:
    """Fit fairlearn's solver on the training rows.

    Args:
        estimator: "logistic" regression, or boosted "trees".
        bound: how far a group's rate may be from everybody's.
        rounds: the most iterations to take (fairlearn's own default is 50).

    Returns:
        Its positive predictions on both splits (one draw of the lottery), the number of models in the
        lottery, and the processor seconds of the fit.
    """
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    estimators = {
        "logistic": LogisticRegression(max_iter=1000),
        "trees": HistGradientBoostingClassifier(random_state=0),
    }
    if estimator not in estimators:
        raise ValueError(f"estimator={estimator!r}: choose one of {', '.join(estimators)}")
    data = adult.load()
    solver = ExponentiatedGradient(
        estimators[estimator], DemographicParity(difference_bound=bound), eps=bound, max_iter=rounds
    )
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fairlearn's own, about pandas and its dtypes
        solver.fit(
            data.train.features.numpy(),
            data.train.labels.int().numpy(),
            sensitive_features=data.train.groups.numpy(),
        )
    seconds = time.process_time() - started
    return {
        "train_positive": torch.from_numpy(solver.predict(data.train.features.numpy(), random_state=0) == 1),
        "test_positive": torch.from_numpy(solver.predict(data.test.features.numpy(), random_state=0) == 1),
        "models": int((solver.weights_ > 0).sum()),
        "seconds": seconds,
    }


def judge(positive: torch.Tensor, split: adult.Split) -> dict[str, float]:
    """A classifier's predictions on a split, by fairlearn's metrics.

    Returns:
        accuracy, and of the gaps between a group's rate of positive predictions and everybody's: the `gap`
        (the largest), the `mean_gap` (over the rows), the largest by `chance` (what the same predictions
        would show were the groups drawn by lot), and `disagreement`, between `gap` and what `nupi.rates`
        says it is.
    """
    from fairlearn.metrics import MetricFrame, demographic_parity_difference, selection_rate

    labels, groups, predicted = (x.numpy() for x in (split.labels, split.groups, positive.int()))
    gap = demographic_parity_difference(labels, predicted, sensitive_features=groups, method="to_overall")
    frame = MetricFrame(metrics=selection_rate, y_true=labels, y_pred=predicted, sensitive_features=groups)
    gaps = np.abs(frame.by_group.to_numpy() - frame.overall)
    parity = StatisticalParity(int(groups.max()) + 1)
    logits = torch.where(positive, 1.0, -1.0)
    ours = parity.measure([(logits, split.labels, split.groups)], hard=True).abs().max().item()
    return {
        "accuracy": float((predicted == labels).mean()),
        "gap": float(gap),
        "mean_gap": float((gaps * np.bincount(groups)).sum() / len(groups)),
        "chance": chance_gap(predicted, groups),
        "disagreement": abs(ours - float(gap)),
    }


def chance_gap(predicted: NDArray[Any], groups: NDArray[Any]) -> float:
    """The largest gap to expect if groups had nothing to do with predictions: it is not 0 for small ones."""
    rng = np.random.default_rng(0)
    counts = np.bincount(groups)
    largest = []
    for _ in range(SHUFFLES):
        rates = np.bincount(rng.permutation(groups), weights=predicted) / counts
        largest.append(np.abs(rates - predicted.mean()).max())
    return float(np.mean(largest))


def parity_ceiling(split: adult.Split) -> float:
    """The best accuracy of one that knows the labels but must give every group the same positive rate p.

    To have rate p in a group whose share of positive labels is r, at least |r - p| of its rows must be wrong:
    ceiling = 1 - min over p of sum_g (n_g / n) |r_g - p|, and the minimum is at one of the r_g.
    """
    counts = split.groups.bincount().double()
    shares = split.groups.bincount(weights=split.labels.double()) / counts
    errors = ((shares.unsqueeze(0) - shares.unsqueeze(1)).abs() * counts).sum(1) / counts.sum()
    return 1 - errors.min().item()
