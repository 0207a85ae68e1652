"""Continuous time: gradient descent with nuPI ascent, and the equivalent oscillator.

For min f(x) subject to h(x) = 0, with J of shape (n, c), whose columns are the gradients of the constraints,

    x'  = -grad f(x) - J mu                                          the flow
    mu' = ki h(x) + kp J^T x'

Its time derivative, with Phi = hess f + sum mu_c hess h_c and Xi_c = x'^T hess h_c x', is

    x''  = -Phi x' - J mu'                                           the oscillator
    mu'' = ki J^T x' + kp J^T x'' + kp Xi

with x'(0) and mu'(0) from the flow. The term with kp acts like friction, so a larger kp damps more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch.func import grad, jacrev

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Method: TypeAlias = Literal["RK23", "RK45", "DOP853", "Radau", "BDF", "LSODA"]
    Objective: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
    Field: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class FlowProblem:
    """min f(x) subject to h(x) = 0, for differentiable f and h.

    Args:
        f: x of shape (n,) to a scalar.
        h: x of shape (n,) to the violations, of shape (c,).

    With multipliers mu, its Lagrangian is L(x, mu) = f(x) + mu . h(x), and a solution has h(x) = 0 and
    grad_x L(x, mu) = 0.

    Example:
        >>> circle = FlowProblem(f=lambda x: x.sum(), h=lambda x: x.square().sum(dim=0, keepdim=True) - 2)
        >>> x, mu = torch.tensor([-1.0, -1.0]), torch.tensor([0.5])  # the lowest point of the circle
        >>> circle.h(x)
        tensor([0.])
        >>> grad(circle.lagrangian)(x, mu)
        tensor([0., 0.])
        >>> circle.curvature(x, mu)  # mu times the Hessian of h, which is 2 I
        tensor([[1., 0.],
                [0., 1.]])
    """

    f: Objective
    h: Objective

    def lagrangian(self, x: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
        """f(x) + mu . h(x)."""
        return self.f(x) + mu @ self.h(x)

    def slopes(self, x: torch.Tensor) -> torch.Tensor:
        """J^T, of shape (c, n): row c is the gradient of constraint c."""
        rows: torch.Tensor = jacrev(self.h)(x)
        return rows

    def curvature(self, x: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
        """Phi, the Hessian of the Lagrangian in x: hess f + sum mu_c hess h_c."""
        phi: torch.Tensor = jacrev(grad(self.lagrangian))(x, mu)
        return phi

    def bending(self, x: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        """Xi, the curvature of the constraints along the motion: v^T hess h_c v for each constraint c."""

        def rate(at: torch.Tensor) -> torch.Tensor:
            return self.slopes(at) @ velocity

        turning: torch.Tensor = jacrev(rate)(x)
        return turning @ velocity


@dataclass(frozen=True)
class Trajectory:
    """The solution at `times`: x of shape (T, n), mu and the violations h(x) of shape (T, c)."""

    times: torch.Tensor
    x: torch.Tensor
    mu: torch.Tensor
    violations: torch.Tensor


def flow(problem: FlowProblem, ki: float, kp: float, n: int) -> Field:
    """The right-hand side of the flow, on the state (x, mu) as one vector; n is the length of x."""

    def field(state: torch.Tensor) -> torch.Tensor:
        x, mu = state[:n], state[n:]
        dx = -grad(problem.lagrangian)(x, mu)
        return torch.cat([dx, ki * problem.h(x) + kp * problem.slopes(x) @ dx])

    return field


def oscillator(problem: FlowProblem, ki: float, kp: float, n: int) -> Field:
    """The right-hand side of the oscillator, on the state (x, mu, x', mu') as one vector."""

    def field(state: torch.Tensor) -> torch.Tensor:
        position, velocity = state.chunk(2)
        x, mu, dx, dmu = position[:n], position[n:], velocity[:n], velocity[n:]
        slopes = problem.slopes(x)
        ddx = -problem.curvature(x, mu) @ dx - slopes.T @ dmu
        ddmu = ki * slopes @ dx + kp * (slopes @ ddx + problem.bending(x, dx))
        return torch.cat([velocity, ddx, ddmu])

    return field


def oscillator_start(
    problem: FlowProblem, ki: float, kp: float, x0: torch.Tensor, mu0: torch.Tensor
) -> torch.Tensor:
    """The initial state (x, mu, x', mu') of the oscillator, with the velocities of the flow.

    x'(0) = -grad f - J mu_0;  mu'(0) = ki h(x_0) + kp J^T x'(0)
    """
    position = torch.cat([x0, mu0])
    return torch.cat([position, flow(problem, ki, kp, len(x0))(position)])


def solve_flow(
    problem: FlowProblem,
    x0: torch.Tensor | Sequence[float],
    *,
    ki: float,
    kp: float,
    times: Sequence[float] | torch.Tensor,
    mu0: torch.Tensor | Sequence[float] | None = None,
    method: Method = "DOP853",
    tolerance: float = 1e-10,
) -> Trajectory:
    """The flow from x0 at the given times, by one of scipy's solvers, in double precision.

        x'  = -grad f(x) - J mu
        mu' = ki h(x) + kp J^T x'        with the gradients of h as the columns of J

    Args:
        problem: the objective and the constraints.
        x0: the start of x, of shape (n,).
        ki: the integral gain per unit of time. For a run with primal step eta, divide its ki by eta.
        kp: the proportional gain.
        times: rising times; the flow starts at the first.
        mu0: the start of the multipliers; by default zero.
        method: a method of `scipy.integrate.solve_ivp`; "Radau" for stiff problems.
        tolerance: the relative and absolute tolerance.

    Example:
        >>> circle = FlowProblem(f=lambda x: x.sum(), h=lambda x: x.square().sum(dim=0, keepdim=True) - 2)
        >>> run = solve_flow(circle, torch.tensor([1.0, 0.0]), ki=1.0, kp=1.0, times=[0.0, 40.0])
        >>> run.x[-1]
        tensor([-1., -1.], dtype=torch.float64)
    """
    x0, mu0 = _start(problem, x0, mu0, ki, kp)
    states = integrate(
        flow(problem, ki, kp, len(x0)), torch.cat([x0, mu0]), times, method=method, tolerance=tolerance
    )
    return _trajectory(problem, times, states, len(x0))


def solve_oscillator(
    problem: FlowProblem,
    x0: torch.Tensor | Sequence[float],
    *,
    ki: float,
    kp: float,
    times: Sequence[float] | torch.Tensor,
    mu0: torch.Tensor | Sequence[float] | None = None,
    method: Method = "DOP853",
    tolerance: float = 1e-10,
) -> Trajectory:
    """The same trajectory as `solve_flow`, computed from the second-order system; the same arguments.

        x''  = -Phi x' - J mu'
        mu'' = ki J^T x' + kp J^T x'' + kp Xi

    Phi is the Hessian of the Lagrangian in x, the columns of J are the gradients of the constraints, and
    Xi_c = x'^T hess h_c x'.

    Example:
        >>> game = FlowProblem(f=lambda x: 0 * x.sum(), h=lambda x: x)  # only x = 0 is feasible
        >>> for kp in (0.0, 2.0):
        ...     run = solve_oscillator(game, [1.0], ki=1.0, kp=kp, times=[0.0, math.pi, 2 * math.pi])
        ...     print(kp, [round(x, 3) for x in run.x.flatten().tolist()])
        0.0 [1.0, -1.0, 1.0]
        2.0 [1.0, 0.179, 0.014]
    """
    x0, mu0 = _start(problem, x0, mu0, ki, kp)
    start = oscillator_start(problem, ki, kp, x0, mu0)
    states = integrate(oscillator(problem, ki, kp, len(x0)), start, times, method=method, tolerance=tolerance)
    return _trajectory(problem, times, states[:, : len(start) // 2], len(x0))


def integrate(
    field: Field,
    start: torch.Tensor,
    times: Sequence[float] | torch.Tensor,
    *,
    method: Method = "DOP853",
    tolerance: float = 1e-10,
) -> torch.Tensor:
    """Solve state' = field(state); returns the states at the given times, of shape (T, n)."""
    from scipy.integrate import solve_ivp

    at = torch.as_tensor(times, dtype=torch.float64)
    if at.ndim != 1 or len(at) < 2 or not bool((at.diff() > 0).all() & at.isfinite().all()):
        raise ValueError(f"times must be at least two rising numbers, but {times!r} came")
    solution = solve_ivp(
        lambda _, state: field(torch.from_numpy(state)).numpy(),
        (at[0].item(), at[-1].item()),
        start.double().numpy(),
        t_eval=at.numpy(),
        method=method,
        rtol=tolerance,
        atol=tolerance,
    )
    if not solution.success:
        raise RuntimeError(f"{method} stopped at t={solution.t[-1]:.4g}: {solution.message}")
    return torch.from_numpy(solution.y).T.contiguous()


def _start(
    problem: FlowProblem,
    x0: torch.Tensor | Sequence[float],
    mu0: torch.Tensor | Sequence[float] | None,
    ki: float,
    kp: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check everything that goes into a solver; returns both starts in double precision, without a graph."""
    for name, gain in (("ki", ki), ("kp", kp)):
        if not math.isfinite(gain):
            raise ValueError(f"{name}={gain} must be finite")
    x = _vector("x0", x0)
    loss, violations = problem.f(x), problem.h(x)
    if loss.ndim != 0:
        raise ValueError(f"f must return a scalar, but at x0 its shape is {tuple(loss.shape)}; sum it")
    if violations.ndim != 1:
        raise ValueError(
            f"h must return the violations as a vector, but at x0 its shape is {tuple(violations.shape)}; "
            "end it with .reshape(-1)"
        )
    if not bool(loss.isfinite()) or not bool(violations.isfinite().all()):
        raise ValueError(
            f"f and h must be finite at x0, but they are {loss.item()} and {violations.tolist()}"
        )
    if mu0 is None:
        return x, torch.zeros(len(violations), dtype=torch.float64)
    mu = _vector("mu0", mu0)
    if len(mu) != len(violations):
        raise ValueError(
            f"mu0 must have one multiplier per constraint, {len(violations)}, but {len(mu)} came"
        )
    return x, mu


def _vector(name: str, value: torch.Tensor | Sequence[float]) -> torch.Tensor:
    vector = torch.as_tensor(value, dtype=torch.float64).detach()
    if vector.ndim != 1 or len(vector) == 0 or not bool(vector.isfinite().all()):
        raise ValueError(f"{name} must be a vector of finite numbers, but {value!r} came")
    return vector


def _trajectory(
    problem: FlowProblem, times: Sequence[float] | torch.Tensor, states: torch.Tensor, n: int
) -> Trajectory:
    x, mu = states[:, :n], states[:, n:]
    at = torch.as_tensor(times, dtype=torch.float64)
    return Trajectory(at, x, mu, torch.stack([problem.h(point) for point in x]))
