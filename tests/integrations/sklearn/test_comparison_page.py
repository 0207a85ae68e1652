"""The comparison with fairlearn on docs/integrations/sklearn.md is what its runs gave."""

from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[3]


def test_the_table_is_that_of_the_runs():
    runs = pd.read_csv(ROOT / "results/sklearn-fairness/results.csv")
    page = (ROOT / "docs/integrations/sklearn.md").read_text(encoding="utf-8")
    for (constraint, method), some in runs.groupby(["constraint", "method"]):
        train, test = (some[some["split"] == split] for split in ("train", "test"))
        cells = [
            f"{each.mean():.3f} ± {each.std():.3f}" for each in (train["gap"], test["gap"], test["accuracy"])
        ]
        met = f"{(train['gap'] <= 0.02).sum()} of {len(train)}"
        row = [constraint.replace("_", " "), method, *cells, met, f"{train['seconds'].mean():.1f}"]
        assert f"| {' | '.join(row)} |" in page
