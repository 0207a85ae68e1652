"""Convex problems whose x, lambda and mu are known without an iterative solver, reached to 1e-8."""

from itertools import chain, combinations

import numpy as np
import pytest
import torch

import nupi
from nupi.rule import FORMS, INITS


def solve(x0, objective, inequality, equality, *, ki, kp, lr, steps, **controller):
    x = x0.clone().requires_grad_()
    groups = {}
    if inequality is not None:
        groups["g"] = nupi.Inequality(inequality(x0).shape)
    if equality is not None:
        groups["h"] = nupi.Equality(equality(x0).shape)
    lagrangian = nupi.Lagrangian(groups).double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=ki, kp=kp, **controller)
    primal = torch.optim.SGD([x], lr=lr)
    for _ in range(steps):
        violations = {name: f(x) for name, f in (("g", inequality), ("h", equality)) if f is not None}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(objective(x), violations).backward()
        primal.step()
    return x.detach().numpy(), {name: m.numpy() for name, m in lagrangian.multipliers.items()}


def exact_qp(H, q, A, b, G, d):
    """min x'Hx/2 + q'x s.t. Ax = b, Gx <= d, by trying every active set: the KKT system solved directly."""
    n = len(q)
    for active in chain.from_iterable(combinations(range(len(d)), k) for k in range(len(d) + 1)):
        rows = np.vstack([A, G[list(active)]])
        zeros = np.zeros((len(rows), len(rows)))
        kkt = np.block([[H, rows.T], [rows, zeros]])
        if np.linalg.matrix_rank(kkt) < len(kkt):
            continue
        solution = np.linalg.solve(kkt, np.concatenate([-q, b, d[list(active)]]))
        x, mu, lam = solution[:n], solution[n : n + len(b)], np.zeros(len(d))
        lam[list(active)] = solution[n + len(b) :]
        if (lam >= 0).all() and (G @ x <= d + 1e-12).all():
            return x, lam, mu
    raise AssertionError("the problem has no solution")


@pytest.mark.parametrize("seed", range(3))
def test_a_quadratic_program(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    H, q = root @ root.T / 5 + np.eye(5), rng.normal(size=5)
    A, b = rng.normal(size=(1, 5)), rng.normal(size=1)
    G, d = rng.normal(size=(4, 5)), rng.normal(size=4) - 0.5
    x, lam, mu = exact_qp(H, q, A, b, G, d)
    assert (lam > 1e-3).any()  # some inequality is active, or this would test little
    tH, tq, tA, tb, tG, td = (torch.from_numpy(array) for array in (H, q, A, b, G, d))
    found, multipliers = solve(
        torch.zeros(5, dtype=torch.float64),
        lambda z: z @ tH @ z / 2 + tq @ z,
        lambda z: tG @ z - td,
        lambda z: tA @ z - tb,
        ki=0.3,
        kp=1.0,
        lr=0.1,
        steps=2_000,
    )
    np.testing.assert_allclose(found, x, atol=1e-8)
    np.testing.assert_allclose(multipliers["g"], lam, atol=1e-8)
    np.testing.assert_allclose(multipliers["h"], mu, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("init", INITS)
def test_projection_onto_a_ball_from_every_start_in_both_forms(init, form):
    a = torch.tensor([3.0, 4.0], dtype=torch.float64)
    x, multipliers = solve(
        torch.zeros(2, dtype=torch.float64),
        lambda z: (z - a).pow(2).sum() / 2,
        lambda z: (z.pow(2).sum() - 1).reshape(1),
        None,
        ki=0.3,
        kp=0.5,
        nu=0.2,
        lr=0.05,
        steps=1_000,
        init=init,
        form=form,
    )
    np.testing.assert_allclose(x, [0.6, 0.8], atol=1e-8)  # a / |a|
    np.testing.assert_allclose(multipliers["g"], [2.0], atol=1e-8)  # (|a| - 1) / 2


def test_least_entropy_on_the_simplex_is_the_softmax():
    c = torch.tensor([0.3, -1.2, 0.7, 2.0], dtype=torch.float64)
    x, multipliers = solve(
        torch.full((4,), 0.25, dtype=torch.float64),
        lambda z: (z * z.log()).sum() + c @ z,
        None,
        lambda z: (z.sum() - 1).reshape(1),
        ki=0.5,
        kp=1.0,
        lr=0.05,
        steps=2_000,
    )
    np.testing.assert_allclose(x, torch.softmax(-c, 0).numpy(), atol=1e-8)
    np.testing.assert_allclose(multipliers["h"], [torch.logsumexp(-c, 0).item() - 1], atol=1e-8)


def test_inactive_constraints_end_with_a_multiplier_of_exactly_zero():
    x, multipliers = solve(
        torch.tensor([5.0], dtype=torch.float64),  # starts infeasible, ends well inside
        lambda z: z.pow(2).sum(),
        lambda z: z - 3,
        None,
        ki=0.1,
        kp=1.0,
        lr=0.1,
        steps=500,
    )
    assert abs(x[0]) < 1e-8
    assert multipliers["g"][0] == 0.0


@pytest.mark.parametrize("order", ["dual first", "primal first", "together"])
@pytest.mark.parametrize("rows", ["dense", "indexed", "a row at a time"])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality], ids=["equality", "inequality"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, maximize=True),
        lambda p: nupi.NuPI(p, ki=0.15, kp=0.3),
        lambda p: nupi.NuPI(p, ki=0.15, kp=0.3, nu=0.5, form="positional"),
        lambda p: nupi.UnifiedMomentum(p, 0.15, -0.2),
    ],
    ids=["SGD", "conditional", "positional", "momentum"],
)
def test_every_order_kind_and_layout_ends_at_the_exact_solution(make, kind, rows, order):
    """min |x - a|^2 / 2 s.t. x_i <= b_i, or = b_i: x and the multipliers by hand; resumed once on the way."""
    a, b = torch.tensor([2.0, -1.0, 0.5]).double(), torch.tensor([1.0, 1.0, 0.5]).double()
    exact = b if kind is nupi.Equality else torch.minimum(a, b)

    def build():
        lagrangian = nupi.Lagrangian({"c": kind(3)}).double()
        return lagrangian, make(lagrangian.parameters())

    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    lagrangian, dual = build()
    primal = torch.optim.SGD([x], lr=0.3)

    def violation(step):
        if rows == "dense":
            return x - b
        seen = torch.tensor([2, 0, 1]) if rows == "indexed" else torch.tensor([step % 3])
        return nupi.Indexed((x - b)[seen], seen)

    steps = 500 if rows == "a row at a time" else 200
    for step in range(steps):
        if step == steps // 10:  # long before anything has settled
            saved = lagrangian.state_dict(), dual.state_dict()
            lagrangian, dual = build()
            lagrangian.load_state_dict(saved[0])
            dual.load_state_dict(saved[1])
        primal.zero_grad()
        if order == "dual first":
            lagrangian.ascend(dual, {"c": violation(step)})
        # All rows are in the loss that x sees, whichever of them the multipliers move by.
        lagrangian((x - a).square().sum() / 2, {"c": x - b}).backward()
        if order == "together":
            lagrangian.ascend(dual, {"c": violation(step)})
        primal.step()
        if order == "primal first":
            lagrangian.ascend(dual, {"c": violation(step)})
    torch.testing.assert_close(x.detach(), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(lagrangian.multipliers["c"], a - exact, rtol=0, atol=1e-6)
