"""The ground truth of the SVM, against an exact QP solver and against exact arithmetic."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
import torch

from nupi.paper.svm.problem import SHOWN, solve_exactly, svm


def test_the_data_are_the_papers():
    problem = svm()
    assert problem.rows.shape == (70, 5)
    assert problem.held_out.shape == (30, 5)
    assert problem.active == (14, 19, 54, 64)
    assert SHOWN in problem.active
    features = torch.cat([problem.rows, problem.held_out])
    features = features[:, :-1] * features[:, -1:]
    torch.testing.assert_close(features.mean(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(4, dtype=torch.float64))
    assert (problem.rows[:, -1] > 0).sum() == 35


def test_an_exact_qp_solver_agrees():
    rows = svm().rows.numpy()
    x = cp.Variable(5)
    margin = rows @ x >= 1
    cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x[:-1])), [margin]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-14, tol_gap_rel=1e-14, tol_feas=1e-14
    )
    np.testing.assert_allclose(svm().x.numpy(), x.value, rtol=0, atol=1e-9)
    np.testing.assert_allclose(svm().multipliers.numpy(), margin.dual_value, rtol=0, atol=1e-9)


def eliminate(system: list[list[Fraction]]) -> list[Fraction]:
    """Gauss and Jordan on an augmented matrix, without rounding."""
    size = len(system)
    for column in range(size):
        pivot = next(row for row in range(column, size) if system[row][column] != 0)
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [entry / head for entry in system[column]]
        for row in range(size):
            factor = system[row][column]
            if row != column and factor != 0:
                system[row] = [a - factor * b for a, b in zip(system[row], system[column], strict=True)]
    return [row[-1] for row in system]


def test_multipliers_are_exact_to_1e_12():
    """The KKT system on the active set in rational arithmetic, from the very doubles of the data."""
    problem = svm()
    tight = [[Fraction(entry) for entry in row] for row in problem.rows[list(problem.active)].tolist()]
    zero, one = Fraction(0), Fraction(1)
    system = []
    for i in range(5):
        hessian = [one if i == j < 4 else zero for j in range(5)]
        system.append([*hessian, *(-row[i] for row in tight), zero])
    system += [[*row, *[zero] * 4, one] for row in tight]
    exact = eliminate(system)
    found = [*problem.x.tolist(), *problem.multipliers[list(problem.active)].tolist()]
    for ours, theirs in zip(found, exact, strict=True):
        assert abs(Fraction(ours) - theirs) < Fraction(1, 10**12)
    slack = [i for i in range(70) if i not in problem.active]
    assert (problem.multipliers[slack] == 0).all()
    assert (problem.violations(problem.x)[slack] < -1e-3).all()
    assert min(exact[5:]) > 0


def test_licq_holds_bias_included():
    problem = svm()
    gradients = -problem.rows[list(problem.active)]
    assert torch.linalg.matrix_rank(gradients) == len(problem.active) == 4


def test_a_wrong_active_set_is_refused(monkeypatch):
    class Wrong:
        def __init__(self, **_options):
            self.support_ = np.array([14, 19, 54])

        def fit(self, *_data):
            return self

    monkeypatch.setattr("nupi.paper.svm.problem.SVC", Wrong)
    with pytest.raises(ArithmeticError, match="is not the active set"):
        solve_exactly(svm().rows.numpy())


def test_distance_and_accuracy():
    problem = svm()
    assert problem.distance(problem.multipliers) == 0
    assert problem.distance(torch.zeros(70, dtype=torch.float64)) == problem.multipliers.norm()
    assert problem.distance(torch.full((70,), torch.nan, dtype=torch.float64)) == torch.inf
    train, held_out = problem.accuracy(problem.x)
    assert train == held_out == 1
    train, held_out = problem.accuracy(-problem.x)
    assert train == held_out == 0
