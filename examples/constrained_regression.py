"""Blend eight forecasters into one: least squares, with weights that are >= 0 and sum to 1.

Gradient ascent on the multipliers oscillates around the solution; nuPI, with the same step size and one more gain,
settles on it. Prints a table and draws both paths beside the exact answer.

    python examples/constrained_regression.py --out out/demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import Bounds, LinearConstraint, minimize

import nupi

STEPS, KI, KP = 4_000, 0.1, 1.0


def forecasts() -> tuple[torch.Tensor, torch.Tensor]:
    """A signal, and eight forecasters of it that share most of their errors."""
    generator = torch.Generator().manual_seed(0)
    signal, shared, *own = torch.randn(10, 200, generator=generator, dtype=torch.float64)
    return signal[:, None] + 0.5 * shared[:, None] + 0.15 * torch.stack(own, dim=1), signal


X, Y = forecasts()


def loss_and_violations(weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The objective f(w), and the constraints as violations: sum(w) - 1 = 0 and -w <= 0."""
    return (X @ weights - Y).square().mean(), {"sum": weights.sum() - 1, "sign": -weights}


def train(kp: float) -> tuple[np.ndarray, np.ndarray]:
    """An ordinary training loop with four new lines; returns the paths of weights and multipliers."""
    weights = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    primal = torch.optim.SGD([weights], lr=0.01, momentum=0.9)

    lagrangian = nupi.Lagrangian({"sum": nupi.Equality(), "sign": nupi.Inequality(8)}).double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=KI, kp=kp)
    path, multiplier = [], []
    for _ in range(STEPS):
        loss, violations = loss_and_violations(weights)
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
        path.append(weights.detach().clone())
        multiplier.append(lagrangian.multipliers["sign"].clone())
    return torch.stack(path).numpy(), torch.stack(multiplier).numpy()


def exact() -> np.ndarray:
    """The same problem for a solver of small constrained programs, as ground truth."""
    x, y = X.numpy(), Y.numpy()
    answer = minimize(  # type: ignore[call-overload] # the stubs ask for narrower callables
        lambda w: float(np.mean((x @ w - y) ** 2)),
        np.full(8, 1 / 8),
        jac=lambda w: 2 * x.T @ (x @ w - y) / len(y),
        bounds=Bounds(0.0, np.inf),
        constraints=LinearConstraint(np.ones((1, 8)), 1, 1),
        method="SLSQP",
        tol=1e-15,
    ).x
    # The solver finds which weights are zero; the rest is a linear system (stationarity, and the sum).
    weights, free = np.zeros(8), answer > 1e-6
    ones = np.ones((1, free.sum()))
    kkt = np.block([[2 * x[:, free].T @ x[:, free] / len(y), ones.T], [ones, np.zeros((1, 1))]])
    weights[free] = np.linalg.solve(kkt, np.append(2 * x[:, free].T @ y / len(y), 1.0))[:-1]
    return weights


def main() -> None:
    """Run both, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    truth = exact()
    runs = {f"gradient ascent (ki = {KI})": train(0.0), f"nuPI (ki = {KI}, kp = {KP:g})": train(KP)}
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    print(f"{'':28}{'|sum(w) - 1|':>14}{'least w':>12}{'distance to optimum':>22}")
    for (name, (path, multiplier)), color in zip(runs.items(), ("#D55E00", "#0072B2"), strict=True):
        last, distance = path[-1], np.linalg.norm(path - truth, axis=1)
        print(f"{name:28}{abs(last.sum() - 1):14.2e}{last.min():12.2e}{distance[-1]:22.2e}")
        left.plot(multiplier[:, 0], color=color, label=name, linewidth=1.2)
        right.semilogy(distance, color=color, linewidth=1.2)
    left.set(xlabel="step", ylabel="multiplier of the first weight's sign")
    right.set(xlabel="step", ylabel="distance to the exact weights")
    left.legend(frameon=False)
    figure.savefig(out / "constrained_regression.png", dpi=150)
    print(f"\nfigure: {out / 'constrained_regression.png'}")


if __name__ == "__main__":
    main()
