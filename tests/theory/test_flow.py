import math
import subprocess
import sys

import pytest
import torch
from scipy.integrate import simpson
from scipy.linalg import expm

from nupi.theory import FlowProblem, solve_flow, solve_oscillator
from nupi.theory.flow import integrate, oscillator, oscillator_start
from nupi.theory.spectrum import system_matrix


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def banana(x):
    return (1 - x[0]) ** 2 + 5 * (x[1] - x[0] ** 2) ** 2


# Two constraints on three variables, all of it nonconvex.
twisted = FlowProblem(
    f=lambda x: torch.sin(x[0]) * x[1] + x.square().sum() + 0.3 * x[2] ** 3,
    h=lambda x: torch.stack([x[0] * x[1] - torch.exp(-x[2]), x[0] ** 2 + torch.cos(x[1]) - 1.2]),
)
ringed = FlowProblem(f=banana, h=lambda x: x.square().sum(dim=0, keepdim=True) - 1)


@pytest.mark.parametrize(("problem", "x0"), [(twisted, [0.5, -0.4, 0.2]), (ringed, [-0.6, 0.9])])
@pytest.mark.parametrize("kp", [0.0, 2.0])
def test_flow_and_oscillator_are_one_trajectory(problem, x0, kp):
    """The oscillator theorem, in the form that holds, on problems that are not convex."""
    times = torch.linspace(0.0, 1.5, 4, dtype=torch.float64)
    mu0 = 0.1 * torch.ones_like(problem.h(tensor(x0)))
    first, second = (
        solve(problem, tensor(x0), ki=2.0, kp=kp, times=times, mu0=mu0, tolerance=1e-8)
        for solve in (solve_flow, solve_oscillator)
    )
    moved = (first.x - first.x[0]).abs().amax()
    assert moved > 0.1  # there is something to agree on
    torch.testing.assert_close(first.x, second.x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first.mu, second.mu, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first.violations, second.violations, rtol=1e-5, atol=1e-6)


def test_flow_is_the_positional_controller():
    """mu(t) = mu_0 + ki integral(h) + kp (h(t) - h(0)): Algorithm 1 in continuous time, by quadrature."""
    times = torch.linspace(0.0, 1.0, 1001, dtype=torch.float64)
    run = solve_flow(ringed, tensor([-0.6, 0.9]), ki=2.0, kp=0.7, times=times)
    integral = simpson(run.violations.numpy(), x=times.numpy(), axis=0)
    expected = 2.0 * torch.from_numpy(integral) + 0.7 * (run.violations[-1] - run.violations[0])
    torch.testing.assert_close(run.mu[-1], expected, rtol=1e-6, atol=1e-6)


def test_on_a_quadratic_program_the_flow_is_a_matrix_exponential():
    """About its solution the QP's flow is s' = -M s; and its velocity decays with exp(-U t)."""
    h, a = tensor([[2.0, 0.3], [0.3, 1.0]]), tensor([[1.0, -0.5]])
    ki, kp = 1.5, 0.4
    program = FlowProblem(f=lambda x: 0.5 * x @ h @ x, h=lambda x: a @ x)
    start = torch.cat([tensor([1.0, 2.0]), tensor([-0.5])])
    run = solve_flow(program, start[:2], ki=ki, kp=kp, times=[0.0, 1.3], mu0=start[2:])
    linear = torch.cat([torch.cat([-h, -a.T], 1), torch.cat([ki * a - kp * a @ h, -kp * a @ a.T], 1)])
    expected = torch.from_numpy(expm(1.3 * linear.numpy())) @ start
    torch.testing.assert_close(torch.cat([run.x[-1], run.mu[-1]]), expected, rtol=1e-8, atol=1e-8)
    velocities = integrate(
        oscillator(program, ki, kp, 2), oscillator_start(program, ki, kp, start[:2], start[2:]), [0.0, 1.3]
    )[:, 3:]
    decay = torch.from_numpy(expm(-1.3 * system_matrix(h, a, ki, kp).numpy()))
    torch.testing.assert_close(velocities[-1], decay @ velocities[0], rtol=1e-8, atol=1e-8)


def test_curvature_and_bending_are_second_derivatives():
    x, mu, v = tensor([0.5, -0.4, 0.2]), tensor([0.3, -1.1]), tensor([1.0, 0.5, -2.0])
    step = 1e-4
    line = [twisted.h(x + s * v) for s in (-step, 0.0, step)]
    second = (line[0] - 2 * line[1] + line[2]) / step**2
    torch.testing.assert_close(twisted.bending(x, v), second, rtol=1e-5, atol=1e-5)
    line = [twisted.lagrangian(x + s * v, mu) for s in (-step, 0.0, step)]
    second = (line[0] - 2 * line[1] + line[2]) / step**2
    torch.testing.assert_close(v @ twisted.curvature(x, mu) @ v, second, rtol=1e-5, atol=1e-5)


def test_a_flow_that_blows_up_says_when():
    runaway = FlowProblem(f=lambda x: -x.pow(4).sum(), h=lambda x: x[:1])
    with pytest.raises(RuntimeError, match="stopped at t="):
        solve_flow(runaway, tensor([2.0]), ki=1.0, kp=0.0, times=[0.0, 10.0], tolerance=1e-3, method="RK23")


@pytest.mark.parametrize("times", [[0.0], [0.0, 1.0, 1.0], [1.0, 0.0]])
def test_times_must_rise(times):
    with pytest.raises(ValueError, match="times must be at least two rising numbers"):
        solve_flow(ringed, tensor([1.0, 0.0]), ki=1.0, kp=0.0, times=times)


def test_theory_imports_no_scipy_and_nupi_no_theory():
    look = "import sys, nupi; print({!r} in sys.modules)".format
    code = f"{look('nupi.theory')}; import nupi.theory; {look('scipy')}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


LINE = FlowProblem(f=lambda x: x.square().sum(), h=lambda x: x.sum(dim=0, keepdim=True) - 1)


def test_a_start_may_be_a_list_or_require_a_gradient():
    expected = solve_flow(LINE, torch.tensor([1.0, 0.0]), ki=1.0, kp=1.0, times=[0.0, 1.0])
    for x0 in ([1.0, 0.0], torch.tensor([1.0, 0.0], requires_grad=True)):
        found = solve_flow(LINE, x0, ki=1.0, kp=1.0, times=[0.0, 1.0], mu0=[0.0])
        torch.testing.assert_close(found.x, expected.x)


@pytest.mark.parametrize("solve", [solve_flow, solve_oscillator])
@pytest.mark.parametrize(
    ("problem", "change", "message"),
    [
        (LINE, {"ki": math.nan}, "ki=nan must be finite"),
        (LINE, {"x0": 1.0}, "x0 must be a vector of finite numbers"),
        (LINE, {"x0": [math.nan, 1.0]}, "x0 must be a vector of finite numbers"),
        (LINE, {"mu0": [0.0, 0.0]}, "mu0 must have one multiplier per constraint, 1, but 2 came"),
        (LINE, {"times": [0.0, math.inf]}, "times must be at least two rising"),
        (FlowProblem(f=LINE.f, h=lambda x: x.sum()), {}, "h must return the violations as a vector"),
        (FlowProblem(f=lambda x: x, h=LINE.h), {}, "f must return a scalar"),
        (FlowProblem(f=lambda x: x.log().sum(), h=LINE.h), {}, "f and h must be finite at x0"),
    ],
)
def test_bad_problems_and_starts_are_refused(solve, problem, change, message):
    with pytest.raises(ValueError, match=message):
        solve(problem, **{"x0": [1.0, 0.0], "ki": 1.0, "kp": 1.0, "times": [0.0, 1.0], **change})
