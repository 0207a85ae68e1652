"""One run in plain numpy: the alternating updates, and their record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch


@dataclass
class Run:
    """One run: its record, its gains, and the right findings."""

    family: str
    seed: int
    truth: frozenset[str]  # the kinds that must be found; none for a healthy run
    also: frozenset[str]  # kinds that may be found and are not wrong
    inequality: bool
    ki: float
    kp: float
    nu: float
    upper: float | None = None  # the bound on the multipliers
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
        run: the gains; the record is written into it.
        x: the start of the parameters.
        pull: the gradient of the objective.
        constraint: the violations and their Jacobian.
        primal: the optimizer of the parameters.
        steps: the number of steps; the run ends earlier if something is not finite.
        noise: the standard deviation of the noise on the violations that the multipliers get.
        seed: the seed of the noise.
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
                new = np.clip(new, 0.0, run.upper)
            if not (np.isfinite(e).all() and np.isfinite(new).all()):
                break
            theta, xi = new, smooth
            violations.append(e)
            multipliers.append(theta)
            x = x + primal.step(pull(x) + jacobian.T @ theta)
    run.violation, run.multiplier = (torch.from_numpy(np.array(v)) for v in (violations, multipliers))
    return run


class Primal:
    """SGD with momentum, or Adam, as in torch."""

    def __init__(self, lr: float, momentum: float = 0.0, *, adam: bool = False) -> None:
        self.lr, self.momentum, self.adam = lr, momentum, adam
        self._v: Array | float = 0.0
        self._m: Array | float = 0.0
        self._steps = 0

    def step(self, gradient: Array) -> Array:
        """The change of the parameters, given the gradient."""
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
