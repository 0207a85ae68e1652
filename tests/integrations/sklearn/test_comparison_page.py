"""The tables of docs/integrations/sklearn.md are what their runs gave."""

from pathlib import Path

import pandas as pd
from benchmarks import sklearn_gains

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/integrations/sklearn.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_runs():
    runs = pd.read_csv(ROOT / "results/sklearn-fairness/results.csv")
    for (constraint, method), some in runs.groupby(["constraint", "method"]):
        train, test = (some[some["split"] == split] for split in ("train", "test"))
        cells = [
            f"{each.mean():.3f} ± {each.std():.3f}" for each in (train["gap"], test["gap"], test["accuracy"])
        ]
        met = f"{(train['gap'] <= 0.02).sum()} of {len(train)}"
        row = [constraint.replace("_", " "), method, *cells, met, f"{train['seconds'].mean():.1f}"]
        assert f"| {' | '.join(row)} |" in PAGE


def test_the_gains_are_those_of_the_runs():
    runs = pd.read_csv(ROOT / "results/sklearn-gains/results.csv")
    assert sklearn_gains.table(runs) in PAGE
    mean = runs.groupby(["constraint", "gains"]).mean(numeric_only=True).loc["equalized_odds"]
    fewer = mean.loc["fixed"] - mean.loc["self_tuned"]
    train, test, larger = 100 * fewer[["train_error", "test_error", "test_violation"]]
    assert (
        f"{train:.1f} points less error than `fixed` on training rows, and {test:.1f} points less on" in PAGE
    )
    assert f"{-larger:.1f} points larger" in PAGE
    found = runs[(runs["constraint"] == "equalized_odds") & (runs["gains"] == "self_tuned")]
    assert -larger < 100 * found["test_violation"].std()
    (late,) = runs[(runs["gains"] == "quarter") & ~runs["met"]]["train_error"]
    assert f"has an error of {late:.2f}" in PAGE
