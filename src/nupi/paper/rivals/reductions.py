"""fairlearn on the same benchmarks: `ExponentiatedGradient` over logistic regression.

It has constraints of the same kind, for groups that do not overlap, so it is given every combination of a
benchmark's groups. What it gives is a lottery over models; its decisions are one draw of it.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch

from nupi.paper.rivals.problems import PROBLEMS
from nupi.paper.rivals.training import judge_decisions, scaled

VERSION = "3"
ROUNDS = 20
BOUNDS = {"compas-tpr": 0.01, "adult-tpr": 0.05, "crime-fpr": 0.01, "adult-parity": 0.01}


def reduction(*, problem: str) -> dict[str, Any]:
    """Fit fairlearn's solver on the training rows, and judge its decisions on both splits."""
    from fairlearn.reductions import (
        DemographicParity,
        ExponentiatedGradient,
        FalsePositiveRateParity,
        TruePositiveRateParity,
    )
    from sklearn.linear_model import LogisticRegression

    kinds = {
        "compas-tpr": TruePositiveRateParity,
        "adult-tpr": TruePositiveRateParity,
        "crime-fpr": FalsePositiveRateParity,
        "adult-parity": DemographicParity,
    }
    chosen = PROBLEMS[problem]
    data = scaled(chosen.load())
    bound = BOUNDS[problem]
    solver = ExponentiatedGradient(
        LogisticRegression(max_iter=1000), kinds[problem](difference_bound=bound), eps=bound, max_iter=ROUNDS
    )
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fairlearn's own, about pandas and its dtypes
        combination = (data.train.members.long() * 2 ** torch.arange(data.train.members.shape[1])).sum(1)
        solver.fit(
            data.train.features.numpy(),
            data.train.labels.int().numpy(),
            sensitive_features=combination.numpy(),
        )
    seconds = time.process_time() - started
    asked = chosen.constraint(len(data.groups))
    found: dict[str, Any] = {"models": int((solver.weights_ > 0).sum()), "seconds": seconds}
    for name, rows in (("train", data.train), ("test", data.test)):
        decided = torch.from_numpy(solver.predict(rows.features.numpy(), random_state=0) == 1)
        found[name] = judge_decisions(torch.where(decided, 1.0, -1.0), rows, asked)
    return found
