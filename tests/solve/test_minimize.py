from functools import partial

import cvxpy as cp
import numpy as np
import pytest
import torch
from tests.solve.problems import corner, loop, mixed

import nupi
from nupi.solve.minimize import Step

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def test_projection_onto_the_disc_has_the_closed_form_solution():
    problem = corner()
    found = nupi.minimize(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        ki=0.2,
        kp=1.0,
        primal=partial(torch.optim.SGD, lr=0.1),
        tol=1e-12,
    )
    assert found.status == nupi.Status.CONVERGED
    exact = torch.tensor([2.0, 1.0], dtype=torch.float64) / 5**0.5
    torch.testing.assert_close(found.x, exact, rtol=0, atol=1e-10)
    assert found.multipliers["inequality"].item() == pytest.approx(5**0.5 - 1, abs=1e-10)
    assert found.residuals.worst.item() <= 1e-12


def test_a_random_quadratic_program_agrees_with_an_exact_solver():
    rng = np.random.default_rng(5)
    n = 4
    root = rng.normal(size=(n, n))
    q, linear = root @ root.T + np.eye(n), rng.normal(size=n)
    inside = rng.normal(size=n)
    a, c = rng.normal(size=(5, n)), rng.normal(size=(1, n))
    b, d = a @ inside + rng.uniform(0.0, 0.2, size=5), c @ inside
    x = cp.Variable(n)
    constraints = [a @ x <= b, c @ x == d]
    exact = cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, cp.psd_wrap(q)) + linear @ x), constraints)
    exact.solve(solver=cp.CLARABEL)
    assert exact.status == "optimal"
    assert max(constraints[0].dual_value) > 1e-2  # some constraint is active, or the test shows nothing

    tensors = [torch.from_numpy(array) for array in (q, linear, a, b, c, d)]
    tq, tlinear, ta, tb, tc, td = tensors
    found = nupi.minimize(
        lambda x: 0.5 * x @ tq @ x + tlinear @ x,
        torch.zeros(n, dtype=torch.float64),
        inequality={"polytope": lambda x: ta @ x - tb},
        equality={"plane": lambda x: tc @ x - td},
        ki=0.05,
        kp=2.0,
        primal=partial(torch.optim.SGD, lr=0.02, momentum=0.5),
        steps=20_000,
        tol=1e-9,
    )
    assert found.status == nupi.Status.CONVERGED
    np.testing.assert_allclose(found.x.numpy(), x.value, atol=1e-6)
    np.testing.assert_allclose(found.multipliers["polytope"].numpy(), constraints[0].dual_value, atol=1e-5)
    np.testing.assert_allclose(found.multipliers["plane"].numpy(), constraints[1].dual_value, atol=1e-5)


def test_it_is_the_loop_of_the_readme():
    problem = mixed()
    found = nupi.minimize(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        equality=problem.equality,
        ki=0.1,
        kp=0.7,
        nu=0.3,
        primal=SGD,
        restart=True,
        steps=60,
    )
    x, multipliers = loop(problem, partial(nupi.NuPI, ki=0.1, kp=0.7, nu=0.3), SGD, 60, restart=True)
    assert found.status == nupi.Status.BUDGET_SPENT
    assert found.steps == 60
    # Not bit for bit: the Lagrangian adds its constraints in the order in which it is given them.
    torch.testing.assert_close(found.x, x, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.multipliers, multipliers, rtol=0, atol=1e-12)


def test_a_dict_of_tensors_is_solved_as_the_same_numbers_in_one_tensor():
    problem = corner()
    together = nupi.minimize(
        problem.objective, problem.x0, inequality=problem.inequality, ki=0.2, kp=1.0, steps=50
    )

    def join(x: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([x["left"], x["right"]])

    apart = nupi.minimize(
        lambda x: problem.objective(join(x)),
        {"left": torch.zeros(1, dtype=torch.float64), "right": torch.zeros(1, dtype=torch.float64)},
        inequality=lambda x: problem.inequality(join(x)),
        ki=0.2,
        kp=1.0,
        steps=50,
    )
    torch.testing.assert_close(join(apart.x), together.x, rtol=0, atol=1e-14)


def test_any_torch_optimizer_may_move_the_multipliers_and_the_point():
    problem = corner()
    found = nupi.minimize(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        dual=partial(torch.optim.Adam, lr=0.01, maximize=True),
        primal=partial(torch.optim.RMSprop, lr=0.01),
        steps=40,
    )
    assert found.multipliers["inequality"] >= 0


def test_history_and_callback_see_the_same_steps():
    problem = mixed()
    seen: list[Step] = []

    def keep(step: Step) -> None:
        seen.append(step._replace(multipliers={name: m.clone() for name, m in step.multipliers.items()}))

    found = nupi.minimize(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        equality=problem.equality,
        ki=0.1,
        steps=10,
        history=["objective", "violations", "multipliers", "x"],
        every=3,
        callback=keep,
    )
    assert [step.step for step in seen] == list(range(10))
    assert found.history["step"].tolist() == [0, 3, 6, 9]
    assert found.history["x"].shape == (4, 3)
    assert torch.equal(found.history["x"][0], problem.x0)
    for row, step in enumerate((0, 3, 6, 9)):
        assert found.history["objective"][row] == seen[step].objective
        assert torch.equal(found.history["multipliers"]["low"][row], seen[step].multipliers["low"])
        assert torch.equal(found.history["violations"]["plane"][row], seen[step].violations["plane"])


def test_a_run_that_blows_up_says_so():
    found = nupi.minimize(
        lambda x: -x.square().sum(),
        torch.ones(1, dtype=torch.float64),
        inequality=lambda x: x,
        ki=0.0,
        primal=partial(torch.optim.SGD, lr=10.0),
        steps=2000,
    )
    assert found.status == nupi.Status.DIVERGED
    assert found.steps < 2000


def test_a_function_that_cannot_be_batched_is_solved_all_the_same():
    def branching(x):
        return x.square().sum() if x.sum() < 9 else x.sum()

    found = nupi.minimize(
        branching, torch.zeros(2).double(), inequality=lambda x: 1 - x.sum(), ki=0.1, kp=1.0, tol=1e-8
    )
    assert found.status == nupi.Status.CONVERGED
    torch.testing.assert_close(found.x, torch.full((2,), 0.5).double(), rtol=0, atol=1e-7)
    assert found.residuals.worst.item() <= 1e-8


@pytest.mark.parametrize("solver", ["minimize", "sweep"])
@pytest.mark.parametrize(
    ("objective", "start", "equality", "lr", "steps"),
    [
        (lambda x: x.log().sum(), 1.0, lambda x: (x + 2).sum(), 0.01, 4000),
        (lambda x: -x.square().sum(), 1e150, lambda x: 1e-300 * x.sum(), 500.0, 5),
    ],
    ids=["outside its domain", "overflowing"],
)
def test_a_point_whose_objective_is_not_finite_has_not_converged(
    solver, objective, start, equality, lr, steps
):
    x0 = torch.tensor([start], dtype=torch.float64)
    primal = partial(torch.optim.SGD, lr=lr, momentum=0.9)
    options = {"equality": equality, "primal": primal, "steps": steps, "tol": 1e-6}
    if solver == "minimize":
        found = nupi.minimize(objective, x0, ki=0.05, kp=3.0, **options)
    else:
        found = nupi.sweep(objective, x0, grid={"ki": [0.05], "kp": [3.0]}, **options).at(ki=0.05, kp=3.0)
    assert bool(torch.isfinite(found.x).all())
    assert not bool(torch.isfinite(found.objective))
    assert found.status == nupi.Status.DIVERGED


def test_a_constant_objective_asks_for_any_feasible_point():
    found = nupi.minimize(
        lambda _: torch.zeros((), dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
        equality=lambda x: x.sum() - 1,
        ki=0.1,
        kp=2.0,
        primal=partial(torch.optim.SGD, lr=0.1),
        tol=1e-6,
    )
    assert found.status == nupi.Status.CONVERGED
    assert found.x.sum().item() == pytest.approx(1.0, abs=1e-6)


def test_the_repr_can_be_read():
    problem = mixed()
    found = nupi.minimize(
        problem.objective, problem.x0, inequality=problem.inequality, ki=0.1, kp=1.0, steps=5
    )
    text = repr(found)
    assert "budget spent, 5 steps" in text
    assert "low" in text
    assert "cap" in text
    assert "stationarity" in text
    assert "tensor(" not in text


X0 = torch.zeros(2)


def square(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x0": [0.0, 0.0]}, TypeError, "x0 must be a tensor"),
        ({"x0": torch.zeros(2, dtype=torch.int64)}, TypeError, r"x0 is torch.int64.*\.double"),
        ({"x0": torch.zeros(2, dtype=torch.bfloat16)}, TypeError, r"too coarse.*\.float"),
        ({"x0": torch.tensor([0.0, torch.nan])}, ValueError, "x0 holds inf or nan"),
        ({"x0": {"a": X0, "b": X0.double()}}, ValueError, r"x0\['b'\] is torch.float64"),
        ({"objective": 3}, TypeError, "objective must be a function"),
        ({"objective": lambda x: x}, ValueError, r"objective must return a scalar.*\.sum"),
        ({"objective": lambda _: 1.0}, TypeError, "objective must return a tensor"),
        ({"inequality": None}, ValueError, "there is no constraint"),
        ({"inequality": 1.0}, TypeError, "inequality must be a function of x or a dict"),
        ({"inequality": lambda x: x.detach()}, ValueError, "'inequality' does not depend on x"),
        ({"inequality": lambda x: x.double()}, ValueError, "returned torch.float64"),
        ({"inequality": lambda x: x / 0}, ValueError, "is not finite at x0"),
        ({"inequality": {"a": square}, "equality": {"a": square}}, ValueError, "'a' names both"),
        ({"ki": None}, TypeError, "give ki"),
        ({"ki": -1.0}, ValueError, "ki"),
        ({"nu": 1.5}, ValueError, "nu"),
        ({"dual": torch.optim.Adam}, TypeError, "ki=0.1"),
        ({"ki": None, "dual": torch.optim.Adam}, ValueError, "dual would minimize"),
        ({"ki": None, "dual": "adam"}, TypeError, "dual must be an optimizer class"),
        ({"primal": partial(torch.optim.SGD, lr=0.1, maximize=True)}, ValueError, "primal would maximize"),
        ({"primal": partial(torch.optim.SGD, lr=-0.1)}, ValueError, "primal cannot be made"),
        ({"steps": 0}, ValueError, "steps must be a whole number"),
        ({"steps": 1.5}, ValueError, "steps must be a whole number"),
        ({"tol": -1.0}, ValueError, "tol must be a positive number"),
        ({"history": "x"}, TypeError, r"use \['x'\]"),
        ({"history": ["lambda"]}, ValueError, "cannot record 'lambda'"),
        ({"history": None}, TypeError, r"history must be a list.*None came; use \[\]"),
        ({"history": 3}, TypeError, "history must be a list.*3 came"),
        ({"restart": "yes"}, TypeError, "restart must be True or False, but 'yes' came"),
        ({"x0": torch.zeros(0)}, ValueError, "x0 is empty"),
        ({"x0": {1: X0}}, TypeError, r"x0\[1\]: the names in x0 must be strings"),
        ({"primal": torch.optim.LBFGS}, TypeError, "primal: LBFGS evaluates its objective several times"),
        ({"ki": None, "dual": torch.optim.LBFGS}, TypeError, "dual: LBFGS evaluates its objective"),
        ({"callback": 3}, TypeError, "callback must be a function"),
    ],
)
def test_bad_input_is_refused_before_any_step(change, error, words):
    arguments = {"objective": square, "x0": X0, "inequality": lambda x: 1 - x, "ki": 0.1} | change
    objective, x0 = arguments.pop("objective"), arguments.pop("x0")
    with pytest.raises(error, match=words):
        nupi.minimize(objective, x0, **arguments)


def test_a_single_run_has_a_frame_of_one_row():
    found = nupi.minimize(square, X0, inequality=lambda x: 1 - x, ki=0.1, steps=3)
    frame = found.frame(norm=found.x.norm())
    assert frame["status"].tolist() == ["budget spent"]
    assert frame["norm"].item() == found.x.norm().item()


@pytest.mark.parametrize(
    ("later", "error", "words"),
    [
        (lambda _: 0.0, TypeError, "'inequality' returned a tensor at x0, but a float later"),
        (lambda x: x.sum(), ValueError, r"'inequality' returned shape \(2,\) at x0, but \(\) later"),
    ],
)
def test_a_constraint_that_changes_what_it_returns_is_named(later, error, words):
    with pytest.raises(error, match=words):
        nupi.minimize(square, X0, inequality=lambda x: later(x) if x.sum() > 0.1 else 1 - x, ki=0.1)
