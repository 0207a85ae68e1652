"""Kinds of constraints: bounds on multipliers, bands, and the values that an exact solver gives them."""

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nupi
from nupi.constraints import Bounds, Constraint

CENTRE = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
ROWS = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)


def objective(x):
    return (x - CENTRE).square().sum() / 2


def train(constraint, violation, steps=4000, make=None, **more):
    """The loop a user would write; x, and the multipliers as they ended."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    lagrangian = nupi.Lagrangian({"c": constraint}, **more).double()
    dual = (make or (lambda p: nupi.NuPI(p, ki=0.2, kp=0.5)))(lagrangian.parameters())
    primal = torch.optim.SGD([x], lr=0.1)
    for _ in range(steps):
        violations = {"c": violation(x)}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(objective(x), violations).backward()
        primal.step()
    return x.detach(), lagrangian.multipliers["c"]


def exact(constraints):
    """The same problem by an interior-point solver: x, and the multipliers of its constraints."""
    x = cvxpy.Variable(3)
    asked = constraints(x, ROWS.numpy())
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - CENTRE.numpy()) / 2), asked).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    return torch.from_numpy(x.value), [torch.from_numpy(np.atleast_1d(each.dual_value)) for each in asked]


@pytest.mark.parametrize(
    "shift", [(0.0, 0.0), (2.0, -1.0), (-1.0, 1.4)], ids=["above and below", "inside", "one side"]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda p: nupi.NuPI(p, ki=0.2, kp=0.5),
        lambda p: nupi.NuPI(p, ki=0.2, kp=0.5, form="positional"),
        pytest.param(lambda p: nupi.PID(p, 0.2, 0.5), marks=pytest.mark.nightly),
        pytest.param(lambda p: torch.optim.SGD(p, 0.1, maximize=True), marks=pytest.mark.nightly),
    ],
    ids=["conditional", "positional", "PID", "SGD"],
)
def test_a_band_ends_where_an_exact_solver_does(make, shift):
    offset, tolerance = torch.tensor(shift, dtype=torch.float64), 0.3
    x, multipliers = train(
        nupi.Band(2, tolerance=tolerance), lambda x: ROWS @ x - offset, make=make, steps=2000
    )
    best, (above, below) = exact(
        lambda x, A: [A @ x - offset.numpy() <= tolerance, -(A @ x - offset.numpy()) <= tolerance]
    )
    torch.testing.assert_close(x, best, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(multipliers, torch.stack([above, below], dim=-1), rtol=1e-4, atol=1e-5)
    assert (multipliers >= 0).all()
    assert not (multipliers > 1e-9).all(dim=-1).any()  # at most one side of a band is active


def test_multipliers_return_to_zero_inside_the_band():
    lagrangian = nupi.Lagrangian({"b": nupi.Band(2, tolerance=0.1, init=1.0)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=1.0)
    for _ in range(300):  # 1 falls by at least ki (0.1 - 0.09) a step
        lagrangian.ascend(dual, {"b": torch.tensor([0.05, -0.09])})
    assert lagrangian.multipliers["b"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("upper", [0.4, 100.0])
def test_an_upper_bound_is_an_exact_penalty(upper):
    """min f s.t. g <= 0 with multipliers in [0, upper] is min f + upper sum of max(0, g)."""
    x, multipliers = train(nupi.Inequality(2, upper=upper), lambda x: ROWS @ x + 0.5, steps=2000)
    point = cvxpy.Variable(3)
    excess = cvxpy.sum(cvxpy.pos(ROWS.numpy() @ point + 0.5))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(point - CENTRE.numpy()) / 2 + upper * excess)).solve(
        solver=cvxpy.CLARABEL
    )
    torch.testing.assert_close(x, torch.from_numpy(point.value), rtol=1e-4, atol=1e-4)
    assert ((multipliers >= 0) & (multipliers <= upper)).all()
    assert (multipliers == upper).any() == (upper < 1)


def test_an_infeasible_constraint_costs_its_upper_bound_and_leaves_it_at_once():
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality(upper=2.0)})
    for make in (
        lambda p: nupi.NuPI(p, ki=0.5, kp=1.0),
        lambda p: nupi.NuPI(p, ki=0.5, kp=1.0, form="positional"),
        lambda p: nupi.UnifiedMomentum(p, 0.5, -0.3),
        lambda p: torch.optim.Adam(p, 0.5, maximize=True),
    ):
        dual = make(lagrangian.parameters())
        for _ in range(50):
            lagrangian.ascend(dual, {"g": torch.tensor(1.0)})
        assert lagrangian.multipliers["g"].item() == 2.0
        if isinstance(dual, nupi.NuPI):  # no windup
            lagrangian.ascend(dual, {"g": torch.tensor(-0.1)})
            assert lagrangian.multipliers["g"].item() < 2.0


@pytest.mark.parametrize("kind", ["Band", "upper"])
def test_minimize_and_sweep_call_the_same_bounds(kind):
    def violation(x):
        return ROWS @ x - 0.2

    start = torch.zeros(3, dtype=torch.float64)
    asked = (
        {"constraints": {"c": (nupi.Band(2, tolerance=0.3), violation)}}
        if kind == "Band"
        else {"inequality": {"c": violation}, "upper": 0.4}
    )
    found = nupi.minimize(objective, start, ki=0.05, kp=0.5, steps=800, **asked)
    swept = nupi.sweep(objective, start, grid={"ki": [0.02, 0.05], "kp": [0.5]}, steps=800, **asked)
    one = swept.at(ki=0.05, kp=0.5)
    torch.testing.assert_close(one.x, found.x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.multipliers["c"], found.multipliers["c"], rtol=1e-10, atol=1e-12)
    assert found.multipliers["c"].any()
    for name in ("stationarity", "feasibility", "complementarity"):
        torch.testing.assert_close(
            getattr(one.residuals, name), getattr(found.residuals, name), rtol=1e-6, atol=1e-9
        )


def test_indexed_and_averaged_violations_of_a_band():
    """Row by row against the two inequalities that a band is."""
    lagrangian = nupi.Lagrangian(
        {"b": nupi.Band(3, tolerance=0.5), "a": nupi.Inequality(3), "c": nupi.Inequality(3)}
    )
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=1.0)
    x = torch.tensor([2.0, -1.0, 0.25], requires_grad=True)
    rows = torch.tensor([2, 0, 2])
    for _ in range(3):
        lagrangian.ascend(
            dual,
            {
                "b": nupi.Indexed(x[rows], rows),
                "a": nupi.Indexed(x[rows] - 0.5, rows),
                "c": nupi.Indexed(-x[rows] - 0.5, rows),
            },
        )
        lagrangian.ascend(
            dual,
            {
                "b": nupi.Averaged(3 * x, torch.tensor([3, 3, 0])),
                "a": nupi.Averaged(3 * (x - 0.5), torch.tensor([3, 3, 0])),
                "c": nupi.Averaged(3 * (-x - 0.5), torch.tensor([3, 3, 0])),
            },
        )
    m = lagrangian.multipliers
    torch.testing.assert_close(m["b"], torch.stack([m["a"], m["c"]], dim=-1))
    assert m["b"].any()
    zero = torch.zeros(())
    for kind in (
        lambda v: nupi.Averaged(2 * v, torch.tensor([2, 0, 2])),
        lambda v: nupi.Indexed(v[rows], rows),
        lambda v: v,
    ):
        one = lagrangian(zero, {"b": kind(x)})
        two = lagrangian(zero, {"a": kind(x - 0.5), "c": kind(-x - 0.5)})
        torch.testing.assert_close(one, two)
        left, right = torch.autograd.grad(one, x), torch.autograd.grad(two, x)
        torch.testing.assert_close(left, right)


@given(
    st.floats(0.1, 10),
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.lists(st.floats(0, 2), min_size=3, max_size=3),
)
def test_the_augmented_term_is_the_textbooks(c, errors, thetas):
    e, theta = torch.tensor(errors, dtype=torch.float64), torch.tensor(thetas, dtype=torch.float64)
    equality = sum(t * h + c * h * h / 2 for t, h in zip(thetas, errors, strict=True))
    inequality = sum(
        (max(0.0, t + c * g) ** 2 - t * t) / (2 * c) for t, g in zip(thetas, errors, strict=True)
    )
    assert nupi.Equality(3).term(theta, e, c).item() == pytest.approx(equality, rel=1e-9, abs=1e-9)
    assert nupi.Inequality(3).term(theta, e, c).item() == pytest.approx(inequality, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: nupi.Inequality(upper=0.0), ValueError, "upper must be above 0 and finite, but 0.0 came"),
        (lambda: nupi.Inequality(upper=-1), ValueError, "upper must be above 0"),
        (lambda: nupi.Inequality(upper=float("nan")), ValueError, "upper must be above 0"),
        (lambda: nupi.Inequality(upper=10**400), ValueError, "upper must be above 0 and finite"),
        (lambda: nupi.Inequality(upper="1"), TypeError, "upper must be a positive number"),
        (lambda: nupi.Inequality(upper=1.0, init=2.0), ValueError, r"init=2.0 is above upper=1"),
        (lambda: nupi.Band(tolerance=None), TypeError, "tolerance must be a positive number"),
        (lambda: nupi.Band(tolerance=0), ValueError, "tolerance must be above 0"),
        (lambda: nupi.Band(2, tolerance=True), TypeError, "tolerance must be a positive number"),
        (lambda: nupi.Band(2, tolerance=0.1, init=-1.0), ValueError, "is negative"),
        (lambda: nupi.Band(2), TypeError, "tolerance"),
        (lambda: nupi.Band(2, tolerance=0.1, init=torch.zeros(2)), ValueError, r"init has shape \(2,\)"),
        (lambda: nupi.Equality(init=10**400), TypeError, "init must be"),
        (
            lambda: nupi.Lagrangian({"a": nupi.Equality()}, penalty=0.0),
            ValueError,
            "penalty of 'a' must be above 0",
        ),
        (
            lambda: nupi.Lagrangian({"a": nupi.Equality()}, penalty={"b": 1.0}),
            ValueError,
            "penalty names 'b'",
        ),
    ],
)
def test_what_is_no_bound_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_a_checkpoint_must_lie_within_the_bounds_and_be_of_the_same_kind():
    wide = nupi.Lagrangian({"g": nupi.Inequality(2, init=5.0)})
    narrow = nupi.Lagrangian({"g": nupi.Inequality(2, upper=1.0)})
    with pytest.raises(
        RuntimeError, match=r"'g' has multipliers above its upper bound in it.*nothing was loaded"
    ):
        narrow.load_state_dict(wide.state_dict())
    assert narrow.multipliers["g"].tolist() == [0.0, 0.0]
    band = nupi.Lagrangian({"g": nupi.Band(2, tolerance=0.1)})
    with pytest.raises(RuntimeError, match="'g' is an inequality in it and a band here"):
        band.load_state_dict(wide.state_dict())
    again = nupi.Lagrangian({"g": nupi.Band(2, tolerance=0.1)})
    with torch.no_grad():
        band.multipliers["g"][0, 1] = 3.0
    again.load_state_dict(band.state_dict())
    assert torch.equal(again.multipliers["g"], band.multipliers["g"])


def test_a_kind_of_ones_own_serves_everywhere():
    """A constraint whose multipliers stay in [-1, 1]: one class."""

    class Gentle(Constraint):
        kind = "a gentle equality"
        bounds = Bounds(-1.0, 1.0)

        def infeasibility(self, e):
            return e.abs()

    lagrangian = nupi.Lagrangian({"g": Gentle(2)})
    for dual in (
        nupi.NuPI(lagrangian.parameters(), 0.5, 1.0),
        torch.optim.Adam(lagrangian.parameters(), 0.5, maximize=True),
    ):
        for _ in range(9):
            lagrangian.ascend(dual, {"g": torch.tensor([1.0, -1.0])})
        assert lagrangian.multipliers["g"].tolist() == [1.0, -1.0]
    start = torch.zeros(3, dtype=torch.float64)
    pair = {"g": (Gentle(2), lambda x: ROWS @ x - 3.0)}
    found = nupi.minimize(objective, start, constraints=pair, ki=0.1, kp=0.5, steps=400)
    swept = nupi.sweep(objective, start, constraints=pair, grid={"ki": [0.1], "kp": [0.5]}, steps=400)
    torch.testing.assert_close(swept.at(ki=0.1, kp=0.5).multipliers["g"], found.multipliers["g"])
    assert found.multipliers["g"].abs().max() == 1.0


def test_a_start_that_is_a_tensor_says_where_the_multipliers_are():
    """A number leaves that to torch, as a layer does."""
    with torch.device("meta"):
        lagrangian = nupi.Lagrangian(
            {"given": nupi.Equality(2, init=torch.ones(2, device="cpu")), "left": nupi.Equality(2, init=1.0)}
        )
    assert lagrangian.multipliers["given"].tolist() == [1.0, 1.0]
    assert lagrangian.multipliers["left"].is_meta


def test_what_all_ranks_must_share_is_shown():
    assert repr(nupi.Inequality(3, restart=True, upper=2.5)) == "Inequality(3, restart=True, upper=2.5)"
    assert repr(nupi.Inequality((2, 3))) == "Inequality((2, 3))"
    assert repr(nupi.Band(2, tolerance=0.1)) == "Band(2, tolerance=0.1)"


@pytest.mark.parametrize(
    ("constraint", "largest"),
    [(nupi.Equality(3), 0.75), (nupi.Inequality(3), -0.25), (nupi.Band(3, tolerance=0.5), 0.25)],
)
def test_the_largest_violation_is_that_of_its_kind(constraint, largest):
    """Of -0.5, -0.75 and -0.25: the farthest from 0, the largest, and the farthest outside of the band."""
    assert constraint.largest(torch.tensor([-0.5, -0.75, -0.25])).item() == largest
