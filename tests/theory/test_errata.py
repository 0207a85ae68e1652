"""Each slip in the paper's text, by number as in docs/errata.md: its version fails the check, ours passes."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch

import nupi
from nupi.paper.plane.problem import PROBLEM, START
from nupi.theory import FlowProblem, solve_flow
from nupi.theory.flow import integrate, oscillator, oscillator_start
from nupi.theory.relative_update import UpdateMode, modes, psi
from nupi.theory.spectrum import critical_points, eigenvalues, regime, system_matrix


def first_step(init, **gains):
    theta = torch.zeros(1, dtype=torch.float64)
    optimizer = nupi.NuPI([theta], init=init, **gains)
    theta.grad = torch.full_like(theta, 3.0)
    optimizer.step()
    return theta.item()


def test_1_the_first_step_is_gradient_ascent_from_xi_0_zero_and_not_from_the_error():
    ascent = 0.1 * 3.0
    assert first_step("zero", ki=0.1, kp=2.0) == pytest.approx(ascent)
    assert first_step("error", ki=0.1, kp=2.0) != pytest.approx(ascent)
    assert first_step("error", ki=0.1, kp=2.0) == pytest.approx((0.1 + 2.0) * 3.0)


def test_1_the_tables_row_in_practice_has_its_gains_swapped():
    """Read as printed, kp <- ki and ki <- kp, the row is another controller than Algorithm 1."""

    def algorithm_1(ki, kp, nu, errors):
        xi, total, thetas = 0.0, 0.0, []
        for t, e in enumerate(errors):
            xi = nu * xi + (1 - nu) * e if t else 0.0
            total += e
            thetas.append(kp * xi + ki * total)
        return thetas

    def library(ki, kp, nu, errors):
        theta, thetas = torch.zeros(1, dtype=torch.float64), []
        optimizer = nupi.NuPI([theta], ki=ki, kp=kp, nu=nu, init="zero")
        for e in errors:
            theta.grad = torch.full_like(theta, e)
            optimizer.step()
            thetas.append(theta.item())
        return thetas

    errors = [1.0, 0.5, -0.2, 0.1]
    assert library(0.1, 2.0, 0.3, errors) == pytest.approx(algorithm_1(0.1, 2.0, 0.3, errors))
    assert library(0.1, 2.0, 0.3, errors) != pytest.approx(algorithm_1(2.0, 0.1, 0.3, errors), rel=1e-3)


def test_2_mode_c_ends_at_psi_xi_and_not_at_a_gain_times_xi():
    ki, kp, nu, xi = 1.0, 1.3, 0.2, 0.8
    e = torch.linspace(0.001, 2.0, 4000, dtype=torch.float64)
    opposite = modes(e, torch.tensor(xi, dtype=torch.float64), ki, kp, nu) == UpdateMode.C
    found = e[opposite].max().item()
    step = (e[1] - e[0]).item()
    assert abs(found - psi(ki, kp, nu) * xi) <= step
    for kappa in (ki, kp):
        assert abs(found - kappa * xi) > 10 * step


def test_3_the_gradient_of_the_lagrangian_at_theta_next_has_theta_next_in_it():
    x, old, new = sympy.symbols("x theta_t theta_next")
    f, c = sympy.Function("f")(x), sympy.Function("c")(x)
    gradient = sympy.diff(f + new * c, x)
    assert sympy.simplify(gradient - (f.diff(x) + c.diff(x) * new)) == 0
    assert sympy.simplify(gradient - (f.diff(x) + c.diff(x) * old)) != 0


def test_3_only_with_theta_next_does_a_bilinear_game_stay_bounded():
    """The alternating scheme is wanted for its bounded iterates: the last line as printed has none."""

    def farthest(*, as_printed):
        x, theta = 1.0, 0.0
        far = 0.0
        for _ in range(3000):
            updated = theta + 0.1 * x
            x -= 0.1 * (theta if as_printed else updated)
            theta = updated
            far = max(far, math.hypot(x, theta))
        return far

    assert farthest(as_printed=False) < 2.0
    assert farthest(as_printed=True) > 1e3


KI, KP = 10.0, 3.0  # the 2-D problem at ki = 0.01 with primal steps of 0.001; at kp = 1 a missing kp hides
TIMES = torch.linspace(0.0, 0.1, 5, dtype=torch.float64)
MU0 = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(scope="module")
def true():
    run = solve_flow(PROBLEM, START, ki=KI, kp=KP, times=TIMES, tolerance=1e-7)
    return torch.cat([run.x, run.mu], dim=1)


def miss(true, field, start):
    """How far a second-order system strays from the flow it should be."""
    return (integrate(field, start, TIMES, tolerance=1e-7)[:, :3] - true).abs().max().item()


def test_4_the_oscillator_follows_the_flow_only_with_kp_in_its_initial_condition(true):
    field, start = oscillator(PROBLEM, KI, KP, 2), oscillator_start(PROBLEM, KI, KP, START, MU0)
    assert miss(true, field, start) < 1e-5
    printed = start.clone()
    printed[5:] = KI * PROBLEM.h(START) + PROBLEM.slopes(START) @ start[3:5]  # transposed, or it has no shape
    assert miss(true, field, printed) > 0.1


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_4_the_last_block_is_kp_xi(true, beta):
    """The paper's beta is no symbol of the system; any value of it but kp leaves the flow."""
    right = oscillator(PROBLEM, KI, KP, 2)

    def printed(state):
        out = right(state)
        return torch.cat([out[:5], out[5:] + (beta - KP) * PROBLEM.bending(state[:2], state[3:5])])

    assert miss(true, printed, oscillator_start(PROBLEM, KI, KP, START, MU0)) > 0.1


def test_4_the_proofs_second_derivative_of_mu():
    t, ki, kp = sympy.symbols("t k_i k_p")
    x, h = sympy.Function("x")(t), sympy.Function("h")
    mu_dot = ki * h(x) + kp * h(x).diff(t)
    u = sympy.Symbol("u")
    slope, bend = (h(u).diff(u, order).subs(u, x).doit() for order in (1, 2))
    xi = bend * x.diff(t) ** 2
    corrected = ki * h(x).diff(t) + kp * xi + kp * slope * x.diff(t, 2)
    printed = ki * h(x).diff(t) + kp * xi * x.diff(t) + kp * slope * x.diff(t, 2)
    assert sympy.simplify((mu_dot.diff(t) - corrected).doit()) == 0
    assert sympy.simplify((mu_dot.diff(t) - printed).doit()) != 0


def test_5_the_state_space_form():
    """z' = [[0, I], [0, -U]] z; with the minus before the whole, even position' = velocity is lost."""
    h, a, ki, kp = 1.0, -1.0, 1.0, 0.5
    u, zero, one = system_matrix(h, a, ki, kp), torch.zeros(2, 2), torch.eye(2)
    program = FlowProblem(f=lambda x: 0.5 * h * x.square().sum(), h=lambda x: a * x)
    state = torch.tensor([0.3, -0.7, 1.1, 0.4], dtype=torch.float64)
    true = oscillator(program, ki, kp, 1)(state)
    corrected = torch.cat([torch.cat([zero, one], 1), torch.cat([zero, -u], 1)]).double()
    printed = -torch.cat([torch.cat([zero, one], 1), torch.cat([zero, u], 1)]).double()
    torch.testing.assert_close(corrected @ state, true)
    assert not torch.allclose(printed @ state, true)
    torch.testing.assert_close((printed @ state)[2:], true[2:])  # the lower half has the right sign in both


def test_6_the_second_iterate_of_unified_momentum():
    alpha, beta, gamma, e0, e1 = sympy.symbols("alpha beta gamma e_0 e_1")
    phi1 = alpha * e0
    phi2 = beta * phi1 + alpha * e1
    step = sympy.expand(phi2 + beta * gamma * (phi2 - phi1))
    assert sympy.simplify(step.coeff(e1) - alpha * (1 + beta * gamma)) == 0
    assert sympy.simplify(step.coeff(e1) - alpha * (1 - gamma * (1 - beta))) != 0
    assert sympy.simplify(step.coeff(e0) - alpha * beta * (1 - gamma * (1 - beta))) == 0


def test_6_and_theorem_1_holds_all_the_same():
    """Theorem 1 by sympy, over the first four steps from the definitions of both methods."""
    alpha, beta, gamma = sympy.symbols("alpha beta gamma")
    errors = sympy.symbols("e_0:4")
    ki = alpha / (1 - beta)
    kp = -alpha * beta / (1 - beta) ** 2 * (1 - gamma * (1 - beta))
    phi = momentum = controller = xi = sympy.Integer(0)
    for t, e in enumerate(errors):
        following = beta * phi + alpha * e
        momentum += following + beta * gamma * (following - phi)
        phi = following
        smoothed = beta * xi + (1 - beta) * e if t else (1 - beta) * e
        controller += ki * e + kp * (smoothed - xi)
        xi = smoothed
        assert sympy.simplify(momentum - controller) == 0


def test_7_the_eigenvalue_at_critical_damping_has_the_modulus_of_a():
    h, a, ki = 1.0, -1.0, 1.0  # the figure's
    growing, damped = critical_points(h, a, ki)
    for kp, corrected, printed in (
        (damped, -abs(a) * math.sqrt(ki), -a * math.sqrt(ki)),
        (growing, abs(a) * math.sqrt(ki), a * math.sqrt(ki)),
    ):
        values = eigenvalues(h, a, ki, kp)
        np.testing.assert_allclose(values.real, corrected, atol=1e-7)
        assert abs(values.real[0].item() - printed) > 1.0


# Violations and relative violations (both minima, in percent) as the layer-wise tables print them.
MAIN_TEXT_MINIMA = [-26.5, -27.1, -26.3, -27.8]  # titled 30%
APPENDIX_70_MINIMA = [(-26.5, -37.8), (-27.1, -38.8), (-26.3, -37.5), (-27.8, -39.6)]


def test_8_the_main_texts_layer_wise_table_is_the_one_for_70_percent():
    """A relative violation is the violation over the target density, so the two columns tell the density."""
    assert [row[0] for row in APPENDIX_70_MINIMA] == MAIN_TEXT_MINIMA
    densities = [violation / relative for violation, relative in APPENDIX_70_MINIMA]
    assert densities == pytest.approx([0.70] * 4, abs=0.005)
    assert densities != pytest.approx([0.30] * 4, abs=0.1)


def test_10_an_optimizer_that_scales_both_gains_by_its_step_size():
    """kp = 12,000 at a step of 8e-4 is kp = 9.6 at none: the tables' unit."""
    thetas = [torch.zeros(2, dtype=torch.float64) for _ in range(3)]
    optimizers = [
        nupi.NuPI([thetas[0]], ki=1.0, kp=12_000.0, lr=8e-4),
        nupi.NuPI([thetas[1]], ki=8e-4, kp=9.6),
        nupi.NuPI([thetas[2]], ki=8e-4, kp=12_000.0),
    ]
    for e in ([1.0, -0.5], [0.4, 0.1], [-0.3, 0.2]):
        for theta, optimizer in zip(thetas, optimizers, strict=True):
            theta.grad = torch.tensor(e, dtype=torch.float64)
            optimizer.step()
    torch.testing.assert_close(thetas[0], thetas[1])
    assert (thetas[2] - thetas[1]).abs().max() > 1e3


def test_11_critical_damping_that_converges_may_have_a_negative_kp():
    """Where the curvature exceeds 2 |a| sqrt(ki), gradient ascent is overdamped as it is."""
    _, damped = critical_points(3.0, 1.0, 1.0)
    assert damped < 0
    assert eigenvalues(3.0, 1.0, 1.0, damped).real.max() < 0
    assert regime(3.0, 1.0, 1.0, damped).value == "critically damped"
    assert regime(3.0, 1.0, 1.0, 0.0).value == "overdamped"


def test_12_a_bilinear_game_converges_for_any_positive_kp():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    for kp in (1e-4, 1e-2, 1.0, 100.0):
        values = eigenvalues(torch.zeros(3, 3), a, 1.0, kp)
        assert values[values.abs() > 1e-9].real.max() < 0


def test_the_page_of_errata_names_every_check_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "errata.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    here = {name for name in globals() if re.match(r"test_\d+_", name)}
    assert named == here
