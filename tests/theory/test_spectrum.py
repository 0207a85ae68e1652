import math

import numpy as np
import pytest
import sympy
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from nupi.theory import FlowProblem, Regime, critical_kp, regime
from nupi.theory.flow import oscillator
from nupi.theory.spectrum import critical_points, damping_ratio, decay_rate, eigenvalues, modes, system_matrix

positive = st.floats(0.1, 5.0)


def random_program(seed, n=3, c=2):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return root @ root.T / n, torch.randn(c, n, generator=generator, dtype=torch.float64)


def test_eigenvalues_of_one_variable_by_sympy():
    h, a, ki, kp, x = sympy.symbols("h a k_i k_p lambda")
    u = sympy.Matrix([[h, a], [a * (kp * h - ki), kp * a**2]])
    polynomial = (-u).charpoly(x).as_expr()
    assert sympy.expand(polynomial - (x**2 + (h + kp * a**2) * x + a**2 * ki)) == 0


@given(positive, st.floats(-3.0, 3.0).filter(lambda a: abs(a) > 0.1), positive, st.floats(-5.0, 5.0))
def test_eigenvalues_are_the_roots(h, a, ki, kp):
    trace = h + kp * a**2
    root = np.emath.sqrt(trace**2 - 4 * a**2 * ki)
    expected = np.sort_complex(np.array([(-trace + root) / 2, (-trace - root) / 2]))
    found = np.sort_complex(eigenvalues(h, a, ki, kp).numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_system_matrix_is_the_oscillator_linearised():
    """The blocks of U as the theorem has them, and the derivative of the oscillator's own field by autograd."""
    h, a = random_program(0)
    ki, kp = 0.7, 1.3
    u = system_matrix(h, a, ki, kp)
    steering = a @ (kp * h - ki * torch.eye(3))
    expected = torch.cat([torch.cat([h, a.T], 1), torch.cat([steering, kp * a @ a.T], 1)])
    torch.testing.assert_close(u, expected)
    program = FlowProblem(f=lambda x: 0.5 * x @ h @ x, h=lambda x: a @ x)
    state = torch.randn(10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    jacobian = torch.func.jacrev(oscillator(program, ki, kp, 3))(state)
    torch.testing.assert_close(jacobian[5:, 5:], -u)
    torch.testing.assert_close(jacobian[5:, :5], torch.zeros_like(u))


def test_the_figures_critical_points_and_regimes():
    assert critical_points(1.0, -1.0, 1.0) == (-3.0, 1.0)
    expected = {
        -4.0: Regime.DIVERGENT,
        -3.0: Regime.DIVERGENT,
        -2.0: Regime.DIVERGENT_OSCILLATION,
        -1.0: Regime.UNDAMPED,
        -0.5: Regime.UNDERDAMPED,
        0.999: Regime.UNDERDAMPED,
        1.0: Regime.CRITICALLY_DAMPED,
        1.001: Regime.OVERDAMPED,
        8.0: Regime.OVERDAMPED,
    }
    assert {kp: regime(1.0, -1.0, 1.0, kp) for kp in expected} == expected


@given(positive, st.floats(-3.0, 3.0).filter(lambda a: abs(a) > 0.1), positive)
def test_critical_damping_in_closed_form(h, a, ki):
    growing, damped = critical_points(h, a, ki)
    assert critical_kp(h, a, ki) == damped
    for kp, sign in ((growing, 1), (damped, -1)):
        both = eigenvalues(h, a, ki, kp)
        assert both.real.numpy() == pytest.approx([sign * abs(a) * math.sqrt(ki)] * 2, rel=1e-5)
    assert damping_ratio(h, a, ki, damped) == pytest.approx(1.0)
    assert regime(h, a, ki, damped) is Regime.CRITICALLY_DAMPED
    assert regime(h, a, ki, damped + 0.1) is Regime.OVERDAMPED
    assert regime(h, a, ki, damped - 0.1 * min(1.0, math.sqrt(ki) / abs(a))) is Regime.UNDERDAMPED


@given(positive, positive, positive, st.floats(-1.0, 3.0))
def test_damping_ratio_tells_the_regime(h, a, ki, kp):
    ratio = damping_ratio(h, a, ki, kp)
    assume(abs(ratio) > 1e-3)
    assume(abs(abs(ratio) - 1) > 1e-3)
    expected = (
        (Regime.OVERDAMPED if ratio > 1 else Regime.UNDERDAMPED)
        if ratio > 0
        else (Regime.DIVERGENT if ratio < -1 else Regime.DIVERGENT_OSCILLATION)
    )
    assert regime(h, a, ki, kp) is expected


@pytest.mark.parametrize("seed", range(4))
def test_critical_kp_of_many_variables_is_the_global_maximum(seed):
    h, a = random_program(seed)
    ki = 2.0
    found = critical_kp(h, a, ki)
    # An independent search, with numpy's eigenvalues of a U written out here.
    hn, an = h.numpy(), a.numpy()

    def slowest(kp):
        top = np.hstack([hn, an.T])
        bottom = np.hstack([an @ (kp[0] * hn - ki * np.eye(3)), kp[0] * an @ an.T])
        return -np.linalg.eigvals(np.vstack([top, bottom])).real.min()

    best = differential_evolution(slowest, [(-20.0, 60.0)], seed=0, tol=1e-12, popsize=40)
    assert decay_rate(h, a, ki, found) >= -best.fun - 1e-6


def test_critical_kp_leaves_out_what_no_constraint_feels():
    # The slope of the constraint is 5 along an eigenvector; the other direction decays at rate 1 for any kp.
    assert critical_kp(torch.eye(2), [[3.0, 4.0]], 1.0) == pytest.approx(critical_kp(1.0, 5.0, 1.0), abs=1e-6)


def test_equal_eigenvalues_of_two_directions_are_not_critical_damping():
    two = torch.eye(2)
    assert regime(two, two, 1.0, 2.0) is Regime.OVERDAMPED  # each eigenvalue twice, each with its direction
    assert regime(two, two, 1.0, 1.0) is Regime.CRITICALLY_DAMPED


def test_a_bilinear_game_needs_kp():
    _, a = random_program(1)
    nothing = torch.zeros(3, 3)
    assert regime(nothing, a, 1.0, 0.0) is Regime.UNDAMPED
    assert eigenvalues(nothing, a, 1.0, 0.0).real.abs().max() < 1e-12
    assert regime(nothing, a, 1.0, 1e-3) is Regime.UNDERDAMPED
    # n = 3 variables and c = 2 constraints: one direction of x is free, and stands still.
    assert len(modes(nothing, a, 1.0, 0.5)) == 4


def test_modes_of_an_oscillation():
    slow, fast = modes(1.0, -1.0, 1.0, 0.0)  # -1/2 +- i sqrt(3)/2
    for mode in (slow, fast):
        assert mode.damping_ratio == pytest.approx(0.5)
        assert mode.settling_time == pytest.approx(math.log(50) / 0.5)
        assert mode.period == pytest.approx(4 * math.pi / math.sqrt(3))
    overdamped = modes(1.0, -1.0, 1.0, 3.0)
    assert [mode.period for mode in overdamped] == [math.inf, math.inf]
    growing = modes(1.0, -1.0, 1.0, -4.0)
    assert all(mode.settling_time == math.inf and mode.damping_ratio == -1 for mode in growing)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(0, 1000), st.floats(0.1, 3.0), st.floats(-1.0, 3.0))
def test_rescaling_time_rescales_the_spectrum(seed, ki, kp):
    """x' = -s grad, mu' = s (...): with H, A^T and ki A scaled by s every rate is."""
    h, a = random_program(seed)
    scale = 3.0
    base = np.sort_complex(eigenvalues(h, a, ki, kp).numpy())
    # s H, sqrt(s) A, s ki leaves kp: U becomes similar to s U.
    scaled = np.sort_complex(eigenvalues(scale * h, math.sqrt(scale) * a, scale * ki, kp).numpy())
    np.testing.assert_allclose(scaled, scale * base, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("h", "a", "message"),
    [
        ([[1.0, 2.0], [0.0, 1.0]], [[1.0, 1.0]], "h must be symmetric"),
        ([[1.0, 2.0]], [[1.0, 1.0]], "h must be square"),
        (1.0, [[1.0, 2.0]], "a must have one row per constraint and 1 columns"),
        (torch.ones(2), [[1.0, 2.0]], r"h must be a matrix or a number, but its shape is \(2,\)"),
        (math.nan, 1.0, "h must be finite"),
    ],
)
def test_bad_matrices_are_refused(h, a, message):
    with pytest.raises(ValueError, match=message):
        eigenvalues(h, a, 1.0, 1.0)


def test_bad_gains_are_refused():
    with pytest.raises(ValueError, match=r"ki=0.0: critical damping needs ki > 0"):
        critical_kp(1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="a=0: the constraint does not depend on x"):
        critical_points(1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="a is zero"):
        critical_kp(torch.eye(2), torch.zeros(1, 2), 1.0)


def test_slow_eigenvalues_of_a_stiff_program_count():
    h, a = [[1e7, 0.0], [0.0, 1.0]], [[0.0, 1.0]]
    # Of the second variable alone: lambda^2 - 4 lambda + 1 = 0, which grows at 2 -+ sqrt(3).
    assert regime(h, a, 1.0, -5.0) is Regime.DIVERGENT
    assert decay_rate(h, a, 1.0, -5.0) == pytest.approx(-2 - math.sqrt(3), rel=1e-6)
    assert len(modes(h, a, 1.0, -5.0)) == 3
    assert regime(h, a, 1.0, 0.0) is Regime.UNDERDAMPED
    assert regime(h, a, 1.0, 8.0) is Regime.OVERDAMPED
    assert decay_rate(h, a, 1.0, 0.0) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("h", "a"),
    [
        ([[1e7, 1.0], [1.0, 1.0]], [[0.0, 1.0]]),
        ([[1e7, 0.0], [0.0, 1.0]], [[1.0, 1.0]]),
        ([[1e7, 0.0], [0.0, 1.0]], [[1e-3, 1.0]]),
        ([[1e5, 0.0], [0.0, 1e-5]], [[1.0, 1.0]]),
        ([[1.0, 0.0], [0.0, 1.0]], [[1e3, 0.0], [0.0, 1e-2]]),
    ],
)
def test_critical_kp_of_a_stiff_program_is_no_worse_than_a_plain_scan(h, a):
    def slowest(kp):
        hn, an = np.array(h), np.array(a)
        u = np.block([[hn, an.T], [an @ (kp * hn - np.eye(2)), kp * an @ an.T]])
        return np.linalg.eigvals(u).real.min()

    sizes = np.logspace(-6, 9, 3001)
    best = max(slowest(kp) for kp in np.concatenate([-sizes, [0.0], sizes]))
    found = critical_kp(h, a, 1.0)
    assert slowest(found) >= best * (1 - 1e-3)
    assert slowest(found) > 0


def test_zero_modes_are_counted_by_structure():
    repeated = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    h = torch.diag(torch.tensor([1.0, 1e-7, 0.0]))
    # Of five, a repeated constraint and a flat direction without one stand still.
    found = modes(h, repeated, 1.0, 0.0)
    assert len(found) == 3
    assert found[0].eigenvalue.real == pytest.approx(-1e-7, rel=1e-6)
    assert len(modes(h, repeated, 0.0, 1.0)) == 2  # without ki, x' alone moves, and 1e-7 of it


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gains_and_numbers_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="h must be finite"):
        critical_kp(bad, 1.0, 1.0)
    with pytest.raises(ValueError, match="critical damping needs ki > 0, and finite"):
        critical_kp(1.0, 1.0, bad)
    with pytest.raises(ValueError, match="must be finite"):
        regime(1.0, 1.0, 1.0, bad)


def test_constraints_that_do_nothing_leave_the_variables_alone():
    found = modes([[2.0, 0.0], [0.0, 3.0]], [[0.0, 0.0]], 1.0, 1.0)
    assert [mode.eigenvalue.real for mode in found] == pytest.approx([-2.0, -3.0])
    assert regime(0.0, 0.0, 1.0, 1.0) is Regime.UNDAMPED  # nothing moves
