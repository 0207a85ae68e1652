"""Linear problems, for which the spectrum of the iteration gives the right findings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import nupi
from benchmarks.findings.training import Primal, Run, log_uniform, numbers, train

if TYPE_CHECKING:
    from random import Random


@dataclass
class Linear:
    """min x'Hx/2 + c'x with A x = b, or <= b, under SGD: a problem whose runs are powers of a matrix."""

    h: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    x: torch.Tensor
    lr: float
    momentum: float

    def matrix(self, ki: float, kp: float, nu: float) -> torch.Tensor:
        """The matrix of one round, by `nupi.theory`."""
        return nupi.theory.iteration_matrix(
            self.h, self.a, lr=self.lr, ki=ki, kp=kp, nu=nu, momentum=self.momentum
        )

    def modes(self, ki: float, kp: float, nu: float) -> list[tuple[complex, float]]:
        """Each eigenvalue, with its share of the violation at the start."""
        matrix = self.matrix(ki, kp, nu).to(torch.complex128)
        values, vectors = torch.linalg.eig(matrix)
        n, c = self.a.shape[1], self.a.shape[0]
        # The state, measured from the optimum: x, the momentum buffer, mu, xi.
        system = torch.cat(
            [
                torch.cat([self.h, self.a.T], 1),
                torch.cat([self.a, torch.zeros(c, c, dtype=torch.float64)], 1),
            ]
        )
        right = torch.cat([torch.zeros(n, dtype=torch.float64), self.b])
        best = torch.linalg.solve(system, right)
        state = torch.cat([self.x - best[:n], torch.zeros(n, dtype=torch.float64), -best[n:], -best[n:] * 0])
        weights = torch.linalg.solve(vectors, state.to(torch.complex128))
        carried = (self.a.to(torch.complex128) @ vectors[:n]).abs().sum(0) * weights.abs()
        total = float(carried.sum()) or 1.0
        return [(complex(v), float(w) / total) for v, w in zip(values, carried, strict=True)]

    def run(
        self, run: Run, steps: int, noise: float = 0.0, seed: int = 0, primal: Primal | None = None
    ) -> Run:
        """Train on this problem."""
        h, a, b = self.h.numpy(), self.a.numpy(), self.b.numpy()
        primal = primal or Primal(self.lr, self.momentum)
        return train(
            run, self.x.numpy(), lambda x: h @ x, lambda x: (a @ x - b, a), primal, steps, noise, seed
        )


def linear(random: Random, constraints: int | None = None) -> Linear:
    """A random problem, started at its unconstrained optimum (0), where every constraint is violated."""
    g = numbers(random)
    n = random.randint(2, 8)
    c = constraints or random.choice([1, 1, 1, 2, 3])
    c = min(c, n)
    basis = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))[0]
    spread = random.choice([1.0, 1.0, 3.0])
    curvature = log_uniform(random, 0.05, 2.0) * torch.logspace(0, math.log10(spread), n, dtype=torch.float64)
    h = basis @ torch.diag(curvature) @ basis.T
    a = torch.linalg.qr(torch.randn(n, c, generator=g, dtype=torch.float64))[0].T * log_uniform(
        random, 0.2, 5
    )
    b = -(0.5 + torch.rand(c, generator=g, dtype=torch.float64)) * log_uniform(random, 0.01, 100.0)
    momentum = random.choice([0.0, 0.0, 0.9])
    lr = log_uniform(random, 0.01, 0.3) * (1 - momentum) / float(curvature.max())
    return Linear(h, a, b, torch.zeros(n, dtype=torch.float64), lr, momentum)


def damping(value: complex) -> float:
    """The damping ratio of an eigenvalue of a step: of its logarithm."""
    if value == 0:
        return 1.0
    rate = complex(math.log(abs(value)), math.atan2(value.imag, value.real))
    return -rate.real / abs(rate) if rate else 0.0


def gains(
    random: Random, problem: Linear, speed: tuple[float, float], ratio: tuple[float, float]
) -> tuple[float, float]:
    """Ki and kp that would give the oscillator of one variable this speed and this damping ratio."""
    slope = float(problem.a.square().sum() / len(problem.a))
    curvature = float(problem.h.diagonal().mean())
    eta = problem.lr / (1 - problem.momentum)
    omega, zeta = log_uniform(random, *speed), random.uniform(*ratio)
    ki = omega**2 / (slope * eta)
    kp = max(0.0, (2 * zeta * omega / eta - curvature) / slope)
    return ki, kp


def classify(problem: Linear, ki: float, kp: float, nu: float, steps: int) -> str | None:
    """The kind of an equality-constrained run of this many steps by its spectrum; None if it is a borderline case."""
    modes = problem.modes(ki, kp, nu)
    radius = max(abs(value) for value, _ in modes)
    if radius > 1.0:
        growth = steps * math.log(radius)
        return "diverging" if growth > 6.0 else None
    carrying = [(value, share) for value, share in modes if share > 0.05]
    swinging = [value for value, _ in carrying if abs(value.imag) > 1e-9]
    periods = [2 * math.pi / abs(math.atan2(value.imag, value.real)) for value in swinging]
    ratios = [damping(value) for value in swinging]
    settled = max(steps_to_settle(value) for value, _ in carrying)
    if swinging:
        worst = min(range(len(swinging)), key=lambda i: ratios[i])
        main = max((share for value, share in carrying if value == swinging[worst]), default=0.0)
        if ratios[worst] < 0.1 and 6 <= periods[worst] <= steps / 5 and main > 0.15:
            return "oscillating"
        if min(ratios) < 0.7:
            good = 0.2 <= min(ratios) <= 0.4 and settled < steps / 2 and len(problem.a) == 1
            return "overshoot" if good else None
    if settled < steps / 2:
        return "healthy"
    return "slow" if settled > 6 * steps and radius > 0.999 and not swinging else None


def steps_to_settle(value: complex) -> float:
    """Steps until 2% is left of a mode."""
    size = abs(value)
    return math.inf if size >= 1 else 0.0 if size == 0 else math.log(0.02) / math.log(size)
