"""Runs of constrained training whose truth is known, from the spectrum of the iteration or by construction.

Every family makes runs of one kind from a seeded generator. What a run is called does not depend on the diagnosis:
linear problems are classified by the eigenvalues of `nupi.theory.iteration_matrix`, others are infeasible, inactive,
noisy or slow because they were built so, or are healthy because their noise-free twin settles without crossing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import nupi


@dataclass
class Run:
    """One run: what it did, its gains, and what is true of it."""

    family: str
    seed: int
    truth: frozenset[str]  # the kinds that must be found; none for a healthy run
    also: frozenset[str]  # kinds that may be found and are not wrong
    inequality: bool
    ki: float
    kp: float
    nu: float
    violation: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (steps, constraints)
    multiplier: torch.Tensor = field(default_factory=lambda: torch.empty(0))


Family: TypeAlias = Callable[[Random], "Run | None"]
Array: TypeAlias = "npt.NDArray[np.float64]"


def train(
    run: Run,
    x: Array,
    pull: Callable[[Array], Array],
    constraint: Callable[[Array], tuple[Array, Array]],
    primal: Primal,
    steps: int,
    noise: float = 0.0,
    seed: int = 0,
) -> Run:
    """The alternating updates in plain numpy, which is fifty times faster than a training loop at this size.

    A test compares it with `nupi.Lagrangian` and `nupi.NuPI(init="ema")` to the last digits.

    Args:
        run: the gains, and where to note what happens.
        x: where the parameters start.
        pull: the gradient of the objective.
        constraint: the violations and their Jacobian.
        primal: the optimizer of the parameters.
        steps: how many; fewer if something is not finite.
        noise: the standard deviation of what is added to the violations that the multipliers see.
        seed: of the noise.
    """
    random = np.random.default_rng(seed)
    x = np.array(x, dtype=float)
    size = len(constraint(x)[0])
    theta, xi = np.zeros(size), np.zeros(size)
    violations, multipliers = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            c, jacobian = constraint(x)
            e = c + noise * random.standard_normal(size) if noise else c
            smooth = run.nu * xi + (1 - run.nu) * e
            new = theta + run.ki * e + run.kp * (smooth - xi)
            if run.inequality:
                new = np.maximum(new, 0.0)
            if not (np.isfinite(e).all() and np.isfinite(new).all()):
                break
            theta, xi = new, smooth
            violations.append(e)
            multipliers.append(theta)
            x = x + primal.step(pull(x) + jacobian.T @ theta)
    run.violation, run.multiplier = (torch.from_numpy(np.array(v)) for v in (violations, multipliers))
    return run


class Primal:
    """SGD with momentum, or Adam, as torch has them: what to add to the parameters."""

    def __init__(self, lr: float, momentum: float = 0.0, *, adam: bool = False) -> None:
        self.lr, self.momentum, self.adam = lr, momentum, adam
        self._v: Array | float = 0.0
        self._m: Array | float = 0.0
        self._steps = 0

    def step(self, gradient: Array) -> Array:
        """What to add to the parameters, given the gradient."""
        self._steps += 1
        if not self.adam:
            self._m = self.momentum * self._m + gradient
            return -self.lr * self._m
        self._m = 0.9 * self._m + 0.1 * gradient
        self._v = 0.999 * self._v + 0.001 * gradient**2
        m, v = self._m / (1 - 0.9**self._steps), self._v / (1 - 0.999**self._steps)
        return -self.lr * m / (np.sqrt(v) + 1e-8)


def log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def label(*truth: str, also: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"truth": frozenset(truth), "also": frozenset(also)}


def numbers(random: Random) -> torch.Generator:
    return torch.Generator().manual_seed(random.randrange(2**31))


# Linear problems: the spectrum says what they do ---------------------------------------------------------------------


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
        """Each eigenvalue with the share of the violation that it carries from the start on."""
        matrix = self.matrix(ki, kp, nu).to(torch.complex128)
        values, vectors = torch.linalg.eig(matrix)
        n, c = self.a.shape[1], self.a.shape[0]
        # The state as it stands from the optimum: x, the momentum buffer, mu, xi.
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
    """What the spectrum says of an equality-constrained run of so many steps; None if it is on a border."""
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


def equality(kind: str, speed: tuple[float, float], ratio: tuple[float, float]) -> Family:
    def family(random: Random) -> Run | None:
        problem, steps = linear(random), random.choice([300, 600, 1200, 2400])
        ki, kp = gains(random, problem, speed, ratio)
        nu = random.choice([0.0, 0.0, 0.5, 0.9]) if kp else 0.0
        if classify(problem, ki, kp, nu, steps) != kind:
            return None
        also = {"diverging": ("oscillating",), "oscillating": ("overshoot",), "overshoot": ("oscillating",)}
        names = label(*(() if kind == "healthy" else (kind,)), also=also.get(kind, ()))
        run = Run(f"qp-{kind}", 0, **names, inequality=False, ki=ki, kp=kp, nu=nu)
        return problem.run(run, steps)

    return family


def inequality(kind: str, speed: tuple[float, float], ratio: tuple[float, float]) -> Family:
    """Inequalities that all bind at the optimum: near it the spectrum is that of equalities."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random), random.choice([600, 1200, 2400])
        ki, kp = gains(random, problem, speed, ratio)
        found = classify(problem, ki, kp, 0.0, steps)
        wanted = found if kind == "healthy" else {"diverging": "oscillating"}.get(found or "", found)
        if wanted != kind:
            return None
        run = Run(
            f"ineq-{kind}",
            0,
            **label(*(() if kind == "healthy" else (kind,)), also=_ALSO.get(kind, ())),
            inequality=True,
            ki=ki,
            kp=kp,
            nu=0.0,
        )
        run = problem.run(run, steps)
        if kind == "oscillating" and found == "diverging":
            # The projection bounds it: count how often a multiplier leaves 0, or turns, in this run without noise.
            turns = (run.multiplier.diff(dim=0)[:-1] * run.multiplier.diff(dim=0)[1:] < 0).sum(0)
            if int(turns.max()) < 10 or not bool(run.violation.isfinite().all()):
                return None
        return run

    return family


_ALSO = {"oscillating": ("overshoot", "diverging"), "overshoot": ("oscillating",)}


def noisy_equality(kind: str) -> Family:
    """A well-damped equality measured with noise: kp (1 - nu) sigma is small beside the multiplier, or is not."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
        ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
        nu = random.choice([0.0, 0.5, 0.9]) if kind == "healthy" else random.choice([0.0, 0.0, 0.3])
        if kp <= 0 or classify(problem, ki, kp, nu, steps) != "healthy":
            return None
        best = abs(float(-problem.b / (problem.a @ torch.linalg.solve(problem.h, problem.a.T))))
        share = log_uniform(random, 0.005, 0.05) if kind == "healthy" else log_uniform(random, 0.6, 5.0)
        noise = share * best / (kp * (1 - nu))
        if kind == "healthy" and (noise > 0.2 * abs(float(problem.b)) or ki * noise > 0.05 * best):
            return None
        names = label(*(() if kind == "healthy" else ("noisy",)))
        run = Run(f"noise-{kind}", 0, **names, inequality=False, ki=ki, kp=kp, nu=nu)
        return problem.run(run, steps, noise, random.randrange(2**31))

    return family


def rectified(random: Random) -> Run | None:
    """An inequality with room to spare, whose noise and kp keep lifting its multiplier off 0."""
    problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
    ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
    if kp <= 0 or classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    problem.b = -problem.b  # now 0, the start, satisfies it
    noise = abs(float(problem.b)) * log_uniform(random, 0.6, 2.0)
    run = Run("rectified", 0, **label("noisy"), inequality=True, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def inactive(random: Random) -> Run | None:
    """An inequality that the unconstrained optimum satisfies with room to spare."""
    problem, steps = linear(random), random.choice([300, 600, 1200])
    ki, kp = gains(random, problem, (0.01, 0.1), (0.5, 1.5))
    problem.b = -problem.b
    # Noise with kp would lift the multiplier off 0: that is another kind.
    noise = 0.0 if kp else random.choice([0.0, 0.05, 0.1]) * float(problem.b.abs().min())
    problem.x = torch.randn(len(problem.x), generator=numbers(random), dtype=torch.float64) * 0.05
    if bool((problem.a @ problem.x - problem.b > -0.5 * problem.b).any()):
        return None
    run = Run("inactive", 0, **label("inactive"), inequality=True, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def slow_gain(random: Random) -> Run | None:
    """Ki far too small: by the spectrum it would take six times as many steps and more; measured with noise too."""
    problem, steps = linear(random, 1), random.choice([300, 600, 1200])
    ki, _ = gains(random, problem, (1e-4, 2e-3), (1.0, 1.0))
    if classify(problem, ki, 0.0, 0.0, steps) != "slow":
        return None
    noise = random.choice([0.0, 0.0, 0.03]) * abs(float(problem.b))
    run = Run("slow", 0, **label("slow"), inequality=random.random() < 0.5, ki=ki, kp=0.0, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


# Infeasible ----------------------------------------------------------------------------------------------------------


def contradiction(random: Random) -> Run | None:
    """Two constraints of one slope that cannot both hold: a'x <= -1 and a'x >= 1, or a'x = 1 and a'x = 2."""
    problem, steps = linear(random, 1), random.choice([300, 600, 1200, 2400])
    ki, kp = gains(random, problem, (0.01, 0.15), (0.6, 1.2))
    if classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    both = random.random() < 0.5
    size = abs(float(problem.b))
    if both:
        problem.a, problem.b = torch.cat([problem.a, -problem.a]), torch.tensor([-size, -size]).double()
    else:
        problem.a, problem.b = torch.cat([problem.a, problem.a]), torch.tensor([-size, -2 * size]).double()
    noise = random.choice([0.0, 0.0, 0.03, 0.1]) * size
    run = Run("contradiction", 0, **label("infeasible"), inequality=both, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def out_of_reach(random: Random) -> Run | None:
    """A smooth measure that never reaches its target: sigmoid(w'x) >= 1 + margin, from SGD, momentum or Adam."""
    n, steps = random.randint(1, 5), random.choice([600, 1200, 2400])
    w = torch.randn(n, generator=numbers(random), dtype=torch.float64).numpy()
    margin = log_uniform(random, 0.02, 1.0)
    primal = optimizer(random)
    run = Run(
        "out-of-reach",
        0,
        **label("infeasible"),
        inequality=True,
        ki=log_uniform(random, 0.01, 0.3),
        kp=random.choice([0.0, 1.0]),
        nu=0.0,
    )
    noise = random.choice([0.0, 0.0, 0.01, 0.03])

    def constraint(x: Array) -> tuple[Array, Array]:
        share = 1 / (1 + np.exp(-w @ x))
        return np.array([1 + margin - share]), -(share * (1 - share) * w)[None]

    return train(
        run, np.zeros(n), lambda x: 0.1 * x, constraint, primal, steps, noise, random.randrange(2**31)
    )


# Not linear ----------------------------------------------------------------------------------------------------------


def optimizer(random: Random) -> Primal:
    kind = random.choice(["sgd", "momentum", "adam"])
    if kind == "adam":
        return Primal(log_uniform(random, 0.003, 0.03), adam=True)
    momentum = 0.9 if kind == "momentum" else 0.0
    return Primal(log_uniform(random, 0.02, 0.1) * (1 - momentum), momentum)


def explosion(random: Random) -> Run | None:
    """A ball |x|^2 <= r: a multiplier that is too large makes SGD's own step unstable, and everything grows."""
    n, steps = random.randint(1, 5), 2000
    lr = log_uniform(random, 0.01, 0.2)
    target = 1.0 + torch.rand(n, generator=numbers(random), dtype=torch.float64).numpy()
    ki = log_uniform(random, 3.0, 100.0) / lr
    run = Run(
        "explosion",
        0,
        **label("diverging", also=("oscillating",)),
        inequality=random.random() < 0.5,
        ki=ki,
        kp=0.0,
        nu=0.0,
    )
    run = train(
        run,
        target,
        lambda x: x - target,
        lambda x: (np.array([x @ x - 0.3]), 2 * x[None]),
        Primal(lr),
        steps,
    )
    sizes = run.violation.abs().squeeze(1)
    return run if float(sizes[-1]) > 1e4 * float(sizes[0]) else None


def adam(kind: str) -> Family:
    """A feasible problem under Adam: healthy where its violation settles without crossing; oscillating by count."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
        rate = log_uniform(random, 0.003, 0.03)
        problem.a /= float(problem.a.norm())
        problem.b = -torch.rand(1, generator=numbers(random), dtype=torch.float64) - 0.5
        ki = log_uniform(random, 1e-3, 0.05) if kind == "healthy" else log_uniform(random, 0.05, 3.0)
        kp = log_uniform(random, 0.3, 5.0) if kind == "healthy" else 0.0
        names = label(
            *(() if kind == "healthy" else ("oscillating",)), also=("overshoot",) if kind != "healthy" else ()
        )
        run = Run(f"adam-{kind}", 0, **names, inequality=random.random() < 0.5, ki=ki, kp=kp, nu=0.0)
        run = problem.run(run, steps, primal=Primal(rate, adam=True))
        return run if what_it_did(run.violation.squeeze(1)) == kind else None

    return family


def what_it_did(e: torch.Tensor, slack: float = 0.05) -> str | None:
    """A plain reading of an exact trajectory from e > 0: settled without crossing, or crossing again and again."""
    steps = len(e)
    first = float(e[: steps // 4].max())
    late = e[steps // 2 :]
    if float(e.min()) > -slack * first and float(late.abs().max()) < slack * first:
        return "healthy"
    crossings = int(((e[1:] > 0) != (e[:-1] > 0)).sum())
    if crossings >= 10 and float(late.max() - late.min()) > 0.1 * first:
        return "oscillating"
    return None


def network(kind: str) -> Family:
    """A small network on mini-batches: the share it predicts positive must not pass a bound."""

    def family(random: Random) -> Run | None:
        g = numbers(random)
        data = torch.randn(400, 2, generator=g)
        labels = (data[:, 0] + 0.5 * data[:, 1] > -0.5).float()
        with torch.random.fork_rng():
            torch.manual_seed(random.randrange(2**31))
            model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        bounds = {
            "infeasible": -random.uniform(0.05, 0.3),
            "inactive": random.uniform(1.05, 1.3),
            "slow": 0.3,
            "healthy": random.uniform(0.4, 0.5),
        }
        gain = {
            "infeasible": log_uniform(random, 0.01, 0.1),
            "inactive": 0.05,
            "slow": log_uniform(random, 1e-5, 1e-4),
            "healthy": log_uniform(random, 0.06, 0.15),
        }
        steps = 800 if kind == "healthy" else random.choice([400, 600])
        kp, nu = (random.uniform(3.0, 8.0), 0.0) if kind == "healthy" else (0.0, 0.0)
        names = label(*(() if kind == "healthy" else (kind,)))
        run = Run(f"network-{kind}", 0, **names, inequality=True, ki=gain[kind], kp=kp, nu=nu)
        lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
        dual = nupi.NuPI(lagrangian.parameters(), ki=run.ki, kp=kp, nu=nu, init="zero", form="velocity")
        primal: torch.optim.Optimizer = (
            torch.optim.Adam(model.parameters(), lr=0.01)
            if random.random() < 0.5
            else torch.optim.SGD(model.parameters(), lr=0.2)
        )
        batch = 400 if kind == "healthy" else random.choice([100, 400])
        violations, multipliers = [], []
        for _ in range(steps):
            rows = torch.randperm(400, generator=g)[:batch] if batch < 400 else slice(None)
            out = model(data[rows]).squeeze(1)
            c = {"c": torch.sigmoid(out).mean() - bounds[kind]}
            lagrangian.ascend(dual, c)
            violations.append(c["c"].detach().double().reshape(1))
            multipliers.append(lagrangian.multipliers["c"].double().clone())
            primal.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(out, labels[rows])
            lagrangian(loss, c).backward()
            primal.step()
        run.violation, run.multiplier = torch.stack(violations), torch.stack(multipliers)
        if kind == "healthy" and what_it_did(run.violation.squeeze(1), 0.2) != "healthy":
            return None
        return run

    return family


def svm(kind: str) -> Family:
    """A hard-margin SVM on separable points, one constraint each; the spectrum over its support vectors."""

    def family(random: Random) -> Run | None:
        g = numbers(random)
        m, steps = random.choice([12, 24]), random.choice([1500, 3000])
        y = (torch.arange(m) % 2 * 2 - 1).double()
        points = torch.randn(m, 2, generator=g, dtype=torch.float64) * 0.6 + 2.0 * y[:, None]
        a = -y[:, None] * torch.cat([points, torch.ones(m, 1).double()], 1)
        h = torch.diag(torch.tensor([1.0, 1.0, 0.0])).double()
        support = _support(a)
        if support is None:
            return None
        lr = 0.05
        problem = Linear(h, a[support], -torch.ones(len(support)).double(), torch.zeros(3).double(), lr, 0.0)
        ki, kp = gains(
            random,
            problem,
            (0.02, 0.12) if kind == "healthy" else (0.03, 0.4),
            (0.8, 1.3) if kind == "healthy" else (0.0, 0.05),
        )
        values = torch.linalg.eigvals(problem.matrix(ki, kp, 0.0))
        moving = [complex(v) for v in values if abs(v) > 1e-6]
        radius = max(abs(v) for v in moving)
        swing = [v for v in moving if abs(v.imag) > 1e-9 and damping(v) < 0.1]
        if kind == "healthy" and (radius >= 1 or swing or max(map(steps_to_settle, moving)) > steps / 3):
            return None
        if kind == "oscillating":
            slow = [v for v in swing if 6 < 2 * math.pi / abs(math.atan2(v.imag, v.real)) < steps / 8]
            if not slow or max(map(steps_to_settle, slow)) < steps / 2:
                return None
        names = label(
            *(() if kind == "healthy" else (kind,)),
            also=() if kind == "healthy" else ("overshoot", "diverging"),
        )
        run = Run(f"svm-{kind}", 0, **names, inequality=True, ki=ki, kp=kp, nu=0.0)
        problem.a, problem.b = a, -torch.ones(m).double()
        run = problem.run(run, steps)
        # Near the optimum the support vectors decide; the way there is not linear, and may end in a cycle.
        ended_well = float(run.violation[steps // 2 :].max()) < 0.03
        return run if ended_well or kind != "healthy" else None

    return family


def _support(a: torch.Tensor) -> list[int] | None:
    """The constraints 1 + a x <= 0 that bind at the optimum, by scipy."""
    from scipy.optimize import minimize

    matrix = a.numpy()
    found = minimize(  # type: ignore[call-overload] # its stubs ask for a narrower dict of constraints
        lambda x: 0.5 * x[:2] @ x[:2],
        [0.0, 0.0, 0.0],
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: -1.0 - matrix @ x},
        options={"maxiter": 500},
    )
    if not found.success:
        return None
    binding = [i for i, slack in enumerate(-1.0 - matrix @ found.x) if slack < 1e-6]
    return binding if 2 <= len(binding) <= 3 else None


FAMILIES: dict[str, Family] = {
    "qp-healthy": equality("healthy", (0.01, 0.2), (0.8, 1.5)),
    "qp-diverging": equality("diverging", (0.2, 3.0), (0.0, 0.6)),
    "qp-oscillating": equality("oscillating", (0.02, 0.5), (0.0, 0.08)),
    "qp-overshoot": equality("overshoot", (0.02, 0.3), (0.2, 0.4)),
    "ineq-healthy": inequality("healthy", (0.01, 0.2), (0.8, 1.5)),
    "ineq-oscillating": inequality("oscillating", (0.02, 1.0), (0.0, 0.08)),
    "noise-healthy": noisy_equality("healthy"),
    "noise-noisy": noisy_equality("noisy"),
    "rectified": rectified,
    "inactive": inactive,
    "slow": slow_gain,
    "contradiction": contradiction,
    "out-of-reach": out_of_reach,
    "explosion": explosion,
    "adam-healthy": adam("healthy"),
    "adam-oscillating": adam("oscillating"),
    "network-healthy": network("healthy"),
    "network-infeasible": network("infeasible"),
    "network-inactive": network("inactive"),
    "network-slow": network("slow"),
    "svm-healthy": svm("healthy"),
    "svm-oscillating": svm("oscillating"),
}


def make(family: str, seed: int, attempts: int = 300) -> Run:
    """The run of this family and seed: the first of its random problems whose truth is clear."""
    random = Random(f"{family} {seed}")
    for _ in range(attempts):
        run = FAMILIES[family](random)
        if run is not None and len(run.violation) > 3:
            run.family, run.seed = family, seed
            return run
    raise RuntimeError(f"no run of {family} with seed {seed} in {attempts} attempts")


def as_plain(run: Run) -> dict[str, Any]:
    """A run as data that `torch.save` keeps."""
    return {**run.__dict__, "truth": sorted(run.truth), "also": sorted(run.also)}


def from_plain(plain: dict[str, Any]) -> Run:
    return Run(**{**plain, "truth": frozenset(plain["truth"]), "also": frozenset(plain["also"])})
