"""`ConstrainedClassifier` beside fairlearn's `ExponentiatedGradient`: the same rows of Adult, the same bounds.

Both train a linear model on 3,000 rows, drawn anew for each seed, and are tested on the other 42,222 with fairlearn's
own metrics. fairlearn's result is a randomised mixture of several models; its decisions are one draw.

    python -m benchmarks.sklearn_fairness results/sklearn-fairness.csv
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score

from nupi.integrations.sklearn import ConstrainedClassifier
from nupi.paper.data import adult

BOUND, SEEDS, ROWS = 0.02, 5, 3_000
KINDS = {
    "demographic_parity": (DemographicParity, demographic_parity_difference),
    "equalized_odds": (EqualizedOdds, equalized_odds_difference),
}


@functools.cache
def load() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features, labels, and whether it is a man, of all complete rows of Adult."""
    data = adult.load()
    parts = (data.train, data.test)
    male = np.array([name.startswith("Male") for name in data.groups])
    features = np.concatenate([part.features.numpy() for part in parts]).astype(np.float64)
    labels = np.concatenate([part.labels.numpy() for part in parts]).astype(int)
    return features, labels, male[np.concatenate([part.groups.numpy() for part in parts])]


def models(kind: str, seed: int) -> dict[str, Any]:
    """The models to compare."""
    base = LogisticRegression(max_iter=1_000)
    moment = KINDS[kind][0](difference_bound=BOUND)
    return {
        "unconstrained": base,
        "fairlearn": ExponentiatedGradient(base, moment, eps=BOUND),
        "nupi": ConstrainedClassifier({kind: BOUND}, random_state=seed),
    }


def judged(name: str, kind: str, seed: int) -> list[dict[str, Any]]:
    """Fit one model, and test its decisions on the training rows and on the others."""
    x, y, sex = load()
    order = np.random.default_rng(seed).permutation(len(y))
    parts = {"train": order[:ROWS], "test": order[ROWS:]}
    model, train = models(kind, seed)[name], parts["train"]
    groups = {} if name == "unconstrained" else {"sensitive_features": sex[train]}
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # fairlearn's own, about pandas
        model.fit(x[train], y[train], **groups)
    seconds = time.process_time() - started
    draw = {"random_state": seed} if name == "fairlearn" else {}
    count = int((model.weights_ > 0).sum()) if name == "fairlearn" else 1
    found = []
    for split, rows in parts.items():
        decided = model.predict(x[rows], **draw)
        gap = KINDS[kind][1](y[rows], decided, sensitive_features=sex[rows])
        accuracy = accuracy_score(y[rows], decided)
        found.append(
            {
                "constraint": kind,
                "method": name,
                "seed": seed,
                "split": split,
                "gap": gap,
                "accuracy": accuracy,
            }
            | {"models": count, "seconds": seconds}
        )
    return found


def table(found: pd.DataFrame) -> str:
    """The table of docs/integrations/sklearn.md: mean and standard deviation over the seeds."""
    lines = [
        "| constraint, at most 0.02 | model | gap, train | gap, test | accuracy, train | accuracy, test |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in found["constraint"].unique():
        for name in found["method"].unique():
            rows = found[(found["constraint"] == kind) & (found["method"] == name)]
            cells = []
            for what in ("gap", "accuracy"):
                for split in ("train", "test"):
                    values = rows[rows["split"] == split][what]
                    cells.append(f"{values.mean():.4f} ± {values.std():.4f}")
            models = rows["models"]
            count = "" if models.max() == 1 else f", lottery of {models.min()} to {models.max()} models"
            lines.append(f"| `{kind}` | {name}{count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(path: Path) -> None:
    """Run everything, write one row for each model and split, and print the table."""
    rows: list[dict[str, Any]] = []
    for kind in reversed(KINDS):
        for seed in range(SEEDS):
            for name in ("unconstrained", "fairlearn", "nupi"):
                rows += judged(name, kind, seed)
                pd.DataFrame(rows).round(6).to_csv(path, index=False)
    print(table(pd.read_csv(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
