"""A classifier for some of the people of `people.py`, and its decisions as numbers."""

import numpy as np
from integrations.sklearn.people import draw

from nupi.integrations.sklearn import ConstrainedClassifier

X, Y, SENSITIVE = draw()
SEX = SENSITIVE["sex"]


def positive(labels):
    return (np.asarray(labels) == "yes").astype(int)


def classifier(constraints, **options):
    return ConstrainedClassifier(
        constraints, **{"max_steps": 150, "learning_rate": 0.1, "random_state": 0} | options
    )
