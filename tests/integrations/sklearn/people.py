"""Rows on which a classifier treats groups differently, unless it is kept from it."""

import numpy as np
import pandas as pd


def draw(rows=800, seed=0):
    """Features, labels "no" and "yes", and a frame with sex and race; sex and race shift one feature and the label."""
    rng = np.random.default_rng(seed)
    sensitive = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], size=rows),
            "race": rng.choice(["a", "b", "c"], size=rows, p=[0.5, 0.3, 0.2]),
        }
    )
    shift = (sensitive["sex"] == "m") * 0.8 + (sensitive["race"] == "a") * 0.6
    X = rng.normal(size=(rows, 5))
    X[:, 0] += shift
    score = X @ [1.0, 1.0, 0.8, 0.0, 0.0] + rng.normal(size=rows)
    y = np.where(score > 0.7, "yes", "no")
    return pd.DataFrame(X, columns=list("vwxyz")), y, sensitive
