"""The two-dimensional nonconvex problem, run with the real optimizers.

    min  (x1 + exp(-x2))^2 + (x1^2 + 2 x2 + 1)^2     subject to  x1 + x1^3 + x2 + x2^2 = 2

It has two constrained minima: the global one near (1.03, -0.15), f = 7.92, and a local one near (0.32, 0.88),
f = 8.71. The paper gives the gains and not the primal step, the start or the length of a run. Here they are a
step of 0.001 (plain gradient descent, multipliers first), x = (0, -1), a multiplier of 0, and 15,000 steps.

Why a step of 0.001: it sets the time scale that ki is measured in (continuous time has ki / step, here 10), and
what the paper says pins it down. Linearised at the optimum, the two slowest eigenvalues have damping ratios of 0.67,
0.99 and 1.18 at kp = 1, 3 and 5: underdamped, almost critical, overdamped, as it says. For gradient ascent they are
-0.04 at 0.005 and 0.02 at 0.01. The Lagrangian is not convex at this optimum, so too small a step of gradient ascent
does not just get there late: the optimum repels it. At half the primal step both get there, at twice the step neither.

Why this start: two minima compete, so where gradient ascent ends depends on it. (0, -1) is a round point among the many
from which it reaches the global minimum at 0.01 and not at 0.005, and from which kp = 3 overshoots by little.
`nupi reproduce plane-kp --scale paper` shows both choices, the starts as a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import nupi
from nupi.theory.flow import FlowProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nupi.paper.runner import TargetRun
    from nupi.rule import Init

LR = 0.001
STEPS = 15_000
START = torch.tensor([0.0, -1.0], dtype=torch.float64)
INIT: Init = "zero"  # the paper does not say; plane-kp also shows what comes out from "bumpless"
DEAD_BAND = 1e-3  # a violation this small has no sign: it is rounding, or has settled


def objective(x: torch.Tensor) -> torch.Tensor:
    """F over the last dimension of x, of any batch shape."""
    x1, x2 = x.unbind(-1)
    return (x1 + torch.exp(-x2)).square() + (x1.square() + 2 * x2 + 1).square()


def violation(x: torch.Tensor) -> torch.Tensor:
    """h(x) - 2 over the last dimension of x."""
    x1, x2 = x.unbind(-1)
    return x1 + x1.pow(3) + x2 + x2.square() - 2


def separation(x: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    """The distance between points, over the last dimension."""
    return (x - point).square().sum(dim=-1).sqrt()


PROBLEM = FlowProblem(f=objective, h=lambda x: violation(x).reshape(1))


class Gains(NamedTuple):
    """A choice of gains and what the figures call it."""

    label: str
    ki: float
    kp: float = 0.0
    nu: float = 0.0


@dataclass(frozen=True)
class Path:
    """A run: x of shape (T, 2), the multiplier and the violation of shape (T,)."""

    x: torch.Tensor
    multiplier: torch.Tensor
    violation: torch.Tensor

    def distance(self, point: torch.Tensor) -> torch.Tensor:
        """How far x is from a point, at every step."""
        return separation(self.x, point)

    @property
    def sign_changes(self) -> int:
        """How often the violation changes sign, outside the dead band."""
        signs = self.violation[self.violation.abs() > DEAD_BAND].sign()
        return int((signs[1:] != signs[:-1]).sum())

    @property
    def overshoot(self) -> float:
        """How far the violation goes beyond zero, in percent of where it starts."""
        beyond = (-self.violation * self.violation[0].sign()).clamp(min=0.0).max()
        return 100.0 * float(beyond / self.violation[0].abs())

    @property
    def settled_after(self) -> int:
        """The step after which the violation stays within 1% of where it starts."""
        outside = (self.violation.abs() > 0.01 * self.violation[0].abs()).nonzero()
        return int(outside[-1]) + 1


def runs(run: TargetRun, choices: Sequence[Gains], steps: int = STEPS, init: Init = INIT) -> list[Path]:
    """One run for each choice of gains, all from the same point; `init` is nuPI's initial condition."""
    gains = torch.tensor([[c.ki, c.kp, c.nu] for c in choices], dtype=torch.float64)
    states = torch.empty(steps, len(choices), 4, dtype=torch.float64)
    walk = _walk(START.repeat(len(choices), 1), gains, LR, steps, init)
    for step, (x, multiplier, at) in enumerate(run.progress(walk, "walking", total=steps)):
        states[step] = torch.cat([x, multiplier[:, None], at[:, None]], dim=1)
    return [Path(states[:, i, :2], states[:, i, 2], states[:, i, 3]) for i in range(len(choices))]


def endings(run: TargetRun, starts: torch.Tensor, gains: Gains, lr: float, steps: int) -> torch.Tensor:
    """Where runs from many starts, of shape (count, 2), end."""
    same = torch.tensor([gains[1:]], dtype=torch.float64).repeat(len(starts), 1)
    walk = _walk(starts, same, lr, steps)
    for x, _, _ in run.progress(walk, f"{gains.label}, primal step {lr:g}", total=steps):
        last = x
    return last.clone()


def _walk(
    starts: torch.Tensor, gains: torch.Tensor, lr: float, steps: int, init: Init = INIT
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """All runs in one loop, each with an x and a constraint of its own: x, multipliers and violations a step."""
    x = starts.clone().requires_grad_()
    lagrangian = nupi.Lagrangian({"curve": nupi.Equality(len(starts))}).double()
    # A gain per constraint.
    dual = nupi.NuPI(lagrangian.parameters(), *gains.T, init=init, form="velocity")
    primal = torch.optim.SGD([x], lr=lr)
    for _ in range(steps):
        at = violation(x)
        lagrangian.ascend(dual, {"curve": at})
        yield x.detach(), lagrangian.multipliers["curve"], at.detach()
        lagrangian(objective(x).sum(), {"curve": at}).backward()
        primal.step()
        primal.zero_grad()


class Optima(NamedTuple):
    """Where the problem's solutions are, found without any of our optimizers."""

    constrained: torch.Tensor
    multiplier: float
    local: torch.Tensor
    unconstrained: torch.Tensor
    disagreement: float
    """The distance between two ways of finding the constrained optimum."""


def optima() -> Optima:
    """Solve the problem by scipy's SLSQP and BFGS, and the constrained one again by walking along its curve.

    On the curve x2 = (-1 +- sqrt(9 - 4 x1 - 4 x1^3)) / 2, so that f is a function of x1 on either branch,
    whose least value over a fine grid no local solver can miss.
    """
    import numpy as np
    from scipy.optimize import minimize, minimize_scalar

    def f(x: np.ndarray) -> float:
        return float(objective(torch.from_numpy(x)))

    def on_curve(x1: Any, sign: float) -> Any:
        return np.stack([x1, (-1 + sign * np.sqrt(np.maximum(9 - 4 * x1 - 4 * x1**3, 0.0))) / 2], axis=-1)

    edge = max(root.real for root in np.roots([4, 0, 4, -9]) if abs(root.imag) < 1e-9)  # the curve turns here
    walked = []
    for sign in (-1.0, 1.0):
        grid = np.linspace(-3.0, edge, 20_001)
        i = int(objective(torch.from_numpy(on_curve(grid, sign))).argmin())
        near = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
        best = minimize_scalar(
            lambda x1, s=sign: f(on_curve(x1, s)), bounds=near, method="bounded", options={"xatol": 1e-12}
        )
        walked.append(on_curve(best.x, sign))
    walked_best = min(walked, key=f)

    curve: Any = {"type": "eq", "fun": lambda x: float(violation(torch.from_numpy(x)))}
    tight: Any = {"ftol": 1e-15, "maxiter": 500}
    solved = [
        minimize(f, np.array(start), constraints=curve, method="SLSQP", options=tight)
        for start in ([1.0, 0.0], [0.0, 1.0])
    ]
    by_value = sorted((np.asarray(s.x) for s in solved), key=f)
    free = minimize(f, START.numpy(), method="BFGS", options={"gtol": 1e-9})
    best_point = torch.from_numpy(by_value[0]).requires_grad_()
    (gf,) = torch.autograd.grad(objective(best_point), best_point)
    (gh,) = torch.autograd.grad(violation(best_point), best_point)
    return Optima(
        constrained=best_point.detach(),
        multiplier=-float(gf @ gh / gh.square().sum()),
        local=torch.from_numpy(by_value[1]),
        unconstrained=torch.from_numpy(np.asarray(free.x)),
        disagreement=float(np.linalg.norm(by_value[0] - walked_best)),
    )
