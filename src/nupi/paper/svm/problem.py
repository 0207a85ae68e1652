"""The hard-margin SVM on two species of Iris, and its exact solution.

    minimize ||w||^2 / 2   subject to   1 - y_i (w . x_i + b) <= 0   for the 70 training rows

The point is x = (w, b), one tensor of five numbers; with rows a_i = y_i (x_i, 1) the violations are 1 - A x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

if TYPE_CHECKING:
    from nupi.solve.problem import Point

SHOWN = 64  # the constraint that the paper plots: a support vector


@dataclass(frozen=True)
class SVM:
    """The problem's data and its solution, all in float64.

    Args:
        rows: A, the training rows times their labels, with a last column of labels for the bias: (70, 5).
        held_out: the same for the 30 rows of the validation set.
        active: the indices of the constraints that hold with equality at the solution.
        x: the solution (w*, b*).
        multipliers: lambda*, zero where a constraint is slack: (70).
    """

    rows: torch.Tensor
    held_out: torch.Tensor
    active: tuple[int, ...]
    x: torch.Tensor
    multipliers: torch.Tensor

    def objective(self, x: torch.Tensor) -> torch.Tensor:
        """||w||^2 / 2."""
        return x[:-1].square().sum() / 2

    def violations(self, x: torch.Tensor) -> torch.Tensor:
        """1 - A x."""
        return 1 - self.rows @ x

    def distance(self, multipliers: torch.Tensor) -> torch.Tensor:
        """The Euclidean distance of multipliers (..., 70) to lambda*; inf where they are not finite."""
        gap = (multipliers - self.multipliers).square().sum(-1).sqrt()
        return gap.nan_to_num(nan=torch.inf)

    def accuracy(self, x: Point) -> tuple[torch.Tensor, torch.Tensor]:
        """The share of training and of validation rows that points (..., 5) put on the right side."""
        assert isinstance(x, torch.Tensor)
        train, held_out = ((x @ rows.T > 0).double().mean(-1) for rows in (self.rows, self.held_out))
        return train, held_out


@cache
def svm() -> SVM:
    """Setosa against versicolor, standardised over the 100 rows, split 70/30 by class with random_state=0."""
    features, species = load_iris(return_X_y=True)
    features, species = features[:100], species[:100]
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    labels = np.where(species == 1, 1.0, -1.0)
    signed = labels[:, None] * np.column_stack([features, np.ones(100)])
    train, held_out = train_test_split(signed, test_size=0.3, stratify=species, random_state=0)
    active, x, multipliers = solve_exactly(train)
    return SVM(
        torch.from_numpy(train),
        torch.from_numpy(held_out),
        active,
        torch.from_numpy(x),
        torch.from_numpy(multipliers),
    )


def solve_exactly(rows: np.ndarray) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """The solution and its multipliers to rounding, from the KKT system on the active set.

    A library SVM proposes the active set: its own tolerance is too coarse for its multipliers to serve. On
    the active rows B the conditions are linear, with P = diag(1, .., 1, 0):

        P x - B^T lambda = 0,   B x = 1

    What comes out is checked against all KKT conditions, which no other point satisfies; so it does not
    matter who proposed the set.
    """
    labels = np.sign(rows[:, -1])
    machine = SVC(kernel="linear", C=1e8, tol=1e-9).fit(rows[:, :-1] * labels[:, None], labels)
    active = tuple(sorted(int(row) for row in machine.support_))
    tight = rows[list(active)]
    size, count = rows.shape[1], len(active)
    if np.linalg.matrix_rank(tight) < count:
        raise ArithmeticError(f"the gradients of the active constraints {active} are linearly dependent")
    hessian = np.diag([1.0] * (size - 1) + [0.0])
    system = np.block([[hessian, -tight.T], [tight, np.zeros((count, count))]])
    right = np.concatenate([np.zeros(size), np.ones(count)])
    found = np.linalg.solve(system, right)
    # One step of refinement takes the rounding of the elimination out.
    found += np.linalg.solve(system, right - system @ found)
    x, multipliers = found[:size], np.zeros(len(rows))
    multipliers[list(active)] = found[size:]
    worst = max(
        np.abs(hessian @ x - rows.T @ multipliers).max(),
        (1 - rows @ x).max(),
        -multipliers.min(),
        np.abs(multipliers * (1 - rows @ x)).max(),
    )
    if worst > 1e-12:
        raise ArithmeticError(f"{active} is not the active set: a KKT condition is off by {worst:.1e}")
    return active, x, multipliers
