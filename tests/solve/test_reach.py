"""A run on a problem that cannot be solved has a status that says so; one that is only slow, or swings, has not."""

from functools import partial

import pytest
import torch

import nupi
from nupi.solve.reach import Samples, small_or_opposed

START = torch.tensor([0.3, -0.2], dtype=torch.float64)


def squares(x):
    return x.square().sum()


CONTRADICTION = {"low": lambda x: x[0] + 1, "high": lambda x: 1 - x[0]}
OUT_OF_REACH = {"share": lambda x: 1.2 - torch.sigmoid(x.sum())}
FEASIBLE = {"reach": lambda x: 1 - x.sum()}
TIGHT = {"low": lambda x: x[0] - 1, "high": lambda x: 1 - x[0]}  # x[0] = 1, in two parts


@pytest.mark.parametrize(
    ("constraints", "gains"),
    [(CONTRADICTION, [0.03, 0.1]), (OUT_OF_REACH, [0.1, 0.3])],
    ids=["contradiction", "out of reach"],
)
def test_an_infeasible_problem_is_called_that_by_both_solvers(constraints, gains):
    one = nupi.minimize(squares, START, inequality=constraints, ki=0.1, kp=1.0, tol=1e-6)
    assert one.status == nupi.Status.INFEASIBLE
    assert {finding.kind for finding in one.findings} == {"infeasible"}
    assert "Solution (infeasible, 1000 steps)" in repr(one)
    assert "seems infeasible: the violation is still" in repr(one)
    many = nupi.sweep(squares, START, inequality=constraints, grid={"ki": gains, "kp": [0.0, 1.0]}, tol=1e-6)
    assert (many.status == nupi.Status.INFEASIBLE).all()
    assert "4 runs: 4 infeasible" in repr(many)


@pytest.mark.parametrize("constraints", [FEASIBLE, TIGHT], ids=["feasible", "tight"])
@pytest.mark.parametrize("steps", [20, 60, 1000])
def test_a_feasible_problem_is_never_called_infeasible(constraints, steps):
    """From gains that hardly move the multipliers to those that make them swing for ever."""
    grid = {"ki": torch.logspace(-5, 0, 11).tolist(), "kp": [0.0, 0.1, 1.0, 10.0]}
    found = nupi.sweep(squares, START, inequality=constraints, grid=grid, steps=steps, tol=1e-6)
    assert not (found.status == nupi.Status.INFEASIBLE).any()
    for ki in (1e-5, 0.1, 1.0):
        one = nupi.minimize(squares, START, inequality=constraints, ki=ki, steps=steps, tol=1e-6)
        assert one.status != nupi.Status.INFEASIBLE


def test_points_in_one_place_with_two_labels_cannot_be_separated():
    """A hard-margin SVM on data that overlap: many constraints, of which no two alone contradict each other."""
    random = torch.Generator().manual_seed(0)
    points = torch.randn(30, 2, generator=random, dtype=torch.float64)
    labels = (torch.arange(30) % 2 * 2 - 1).double()

    def margins(x):
        return 1 - labels * (points @ x["w"] + x["b"])

    start = {"w": torch.zeros(2, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    found = nupi.sweep(
        lambda x: 0.5 * x["w"].square().sum(),
        start,
        inequality=margins,
        grid={"ki": [1e-4, 3e-4]},
        steps=2000,
    )
    assert (found.status == nupi.Status.INFEASIBLE).all()


def test_a_run_that_swings_or_diverges_says_what_to_change():
    slow = partial(torch.optim.SGD, lr=0.05)
    swing = nupi.minimize(
        lambda x: 0.05 * squares(x), START, equality=FEASIBLE, ki=0.1, primal=slow, steps=400, tol=1e-8
    )
    assert swing.status == nupi.Status.BUDGET_SPENT
    assert [finding.kind for finding in swing.findings] == ["oscillating"]
    assert "kp" in swing.findings[0].advice.lower()
    lost = nupi.minimize(squares, START, equality=FEASIBLE, ki=300.0, steps=3000)
    assert lost.status == nupi.Status.DIVERGED
    assert [finding.kind for finding in lost.findings] == ["diverging"]


def test_a_run_that_converged_has_no_findings():
    found = nupi.minimize(squares, START, inequality=FEASIBLE, ki=0.1, kp=1.0, tol=1e-8)
    assert found.status == nupi.Status.CONVERGED
    assert found.findings == ()
    assert "found" not in repr(found)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_hardly_any_steps_has_a_status(steps):
    assert (
        nupi.minimize(squares, START, inequality=FEASIBLE, ki=0.1, steps=steps).status
        == nupi.Status.BUDGET_SPENT
    )
    found = nupi.sweep(squares, START, inequality=FEASIBLE, grid={"ki": [0.1]}, steps=steps)
    assert (found.status == nupi.Status.BUDGET_SPENT).all()


def test_small_and_opposed_by_hand():
    """Two constraints, three runs: gradients that agree, that are opposed, and that have become small."""
    now = torch.tensor([[[1.0, 1.0, 0.1], [0.0, 0.0, 0.0]], [[1.0, -1.0, 0.0], [0.0, 0.0, 0.1]]])
    start = torch.tensor([[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]]])

    def pull(jacobian):
        return lambda weights: (jacobian * weights[:, None]).sum(0)

    assert small_or_opposed([pull(now), pull(start)], torch.ones(2, 3)).tolist() == [False, True, True]


def test_samples_of_runs_that_were_let_go_say_nothing():
    samples = Samples(2, 31, torch.device("cpu"))
    for t in range(1, 31):
        alive = torch.tensor([0, 1]) if t < 10 else torch.tensor([1])
        samples.add(torch.ones(1, len(alive)), torch.full((1, len(alive)), float(t)), alive)
    assert samples.stay_violated().tolist() == [False, True]
