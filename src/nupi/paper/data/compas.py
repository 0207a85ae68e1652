"""COMPAS (ProPublica, 2016): who was arrested again within two years, as TFCO's notebook prepares it.

Rows screened within 30 days of the arrest, with a known outcome, for a felony or a misdemeanour: 6,172. Age, risk
score and number of prior offences are cut at percentiles, the last two so that a column says "at least this
bucket"; the other columns are one-hot: 31 features. Groups overlap: women, men, Caucasians, African Americans. The
first 70% of the rows are for training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nupi.paper.data.packaged import Packaged
from nupi.paper.data.tables import Table, split_of

if TYPE_CHECKING:
    from pathlib import Path

FILE = Packaged(
    name="compas",
    file="compas-scores-two-years.csv",
    sha256="c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    rows=7_214,
    package="fairness==0.1.8",
    package_sha256="7f21cf0943f2a6fef7f7597eb99461bd4b2f7a26fe9810964675496cde6992e1",
    member="fairness/data/raw/propublica-recidivism.csv",
    address="https://raw.githubusercontent.com/propublica/compas-analysis/master/compas-scores-two-years.csv",
)
KEPT_ROWS = 6_172
GROUPS = {
    "women": ("sex", "Female"),
    "men": ("sex", "Male"),
    "Caucasian": ("race", "Caucasian"),
    "African-American": ("race", "African-American"),
}
TRAIN_SHARE = 0.7


def load(path: Path | None = None, *, cache: Path | None = None) -> Table:
    """The prepared rows."""
    raw = FILE.read(path, cache=cache)
    near = raw["days_b_screening_arrest"].between(-30, 30)
    rows = raw[near & (raw["is_recid"] != -1) & (raw["c_charge_degree"] != "O") & raw["score_text"].notna()]
    if len(rows) != KEPT_ROWS:
        raise ValueError(f"{len(rows):,} rows of COMPAS are left, not {KEPT_ROWS:,}")
    parts = [rows[["days_b_screening_arrest"]]]
    parts += [
        pd.get_dummies(rows[column], prefix=column)
        for column in ("c_charge_degree", "race", "score_text", "sex")
    ]
    parts.append(_buckets(rows["age"], [20, 40, 60, 80, 90, 100], at_least=False))
    parts.append(_buckets(rows["decile_score"], [20, 40, 60, 80, 90, 100], at_least=True))
    parts.append(_buckets(rows["priors_count"], [50, 70, 80, 90, 100], at_least=True))
    features = pd.concat(parts, axis=1)
    members = pd.DataFrame({name: rows[column] == value for name, (column, value) in GROUPS.items()})
    cut = int(len(rows) * TRAIN_SHARE)
    order = np.arange(len(rows))
    return split_of(features, rows["two_year_recid"], members, order[:cut], order[cut:])


def prepare(path: Path | None = None) -> str:
    """Get the data ready for use offline, and say what it holds."""
    return load(path).summary()


def _buckets(values: pd.Series[float], percentiles: list[int], *, at_least: bool) -> pd.DataFrame:
    """One column a bucket between 0 and percentiles, open below; so 0 itself is in none."""
    edges = [0.0, *np.percentile(values, percentiles)]
    number = pd.cut(values, edges, labels=False)
    columns = {
        f"{values.name}_{i}": (number >= i) if at_least else (number == i) for i in range(len(percentiles))
    }
    return pd.DataFrame(columns)
