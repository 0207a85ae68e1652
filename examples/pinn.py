"""A physics-informed network whose boundary conditions are equalities, not a penalty with a weight to tune.

    -u''(x) = pi^2 sin(pi x) on [0, 1],     u(0) = u(1) = 0,     so that u(x) = sin(pi x).

The loss is the mean squared residual of the differential equation. It does not depend on the boundary values: adding a
line to u does not change it. The two boundary conditions are constraints, each with its own multiplier.

    python examples/pinn.py
"""

from __future__ import annotations

import math

import torch
from torch import nn

import nupi

BOUNDARY = torch.tensor([[0.0], [1.0]])


def residual(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The residual u'' + pi^2 sin(pi x) at each x."""
    x = x.requires_grad_()
    u = model(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return curvature + math.pi**2 * torch.sin(math.pi * x)


def train(steps: int = 1_500) -> nn.Module:
    """Minimize the residual, subject to the boundary conditions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    primal = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, steps)
    # The penalty of an augmented Lagrangian gives the constraints a curvature of their own.
    lagrangian = nupi.Lagrangian({"boundary": nupi.Equality(2)}, penalty=10.0)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=1.0)
    for _ in range(steps):
        loss = residual(model, torch.rand(64, 1)).square().mean()
        violations = {"boundary": model(BOUNDARY).squeeze(1)}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
        schedule.step()
    return model


def main() -> None:
    """Solve, and compare with the solution."""
    model = train()
    x = torch.linspace(0, 1, 101).unsqueeze(1)
    with torch.no_grad():
        left, right = model(BOUNDARY).squeeze(1).tolist()
        error = (model(x) - torch.sin(math.pi * x)).abs().max()
    print(f"u(0) = {left:+.1e}, u(1) = {right:+.1e}, largest error of u {error:.1e}")


if __name__ == "__main__":
    main()
