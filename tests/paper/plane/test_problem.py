"""The two-dimensional problem: its measures by hand, its runs against a plain loop, its optima by their conditions."""

import pytest
import torch

from nupi.paper.plane import problem as plane
from nupi.paper.runner import TargetRun


def path(violations):
    states = torch.tensor(violations, dtype=torch.float64)
    return plane.Path(torch.zeros(len(states), 2), torch.zeros(len(states)), states)


def test_measures_of_a_path():
    ringing = path([-2.0, -1.0, 0.5, 0.2, -0.3, 0.0005, -0.0005, 0.0])
    assert ringing.sign_changes == 2  # what happens within the dead band is no oscillation
    assert ringing.overshoot == pytest.approx(25.0)
    assert ringing.settled_after == 5
    assert path([2.0, 1.0, 0.5, 0.0]).overshoot == 0.0
    assert path([2.0, -1.0]).overshoot == pytest.approx(50.0)


def test_runs_in_one_loop_are_the_runs_one_by_one(tmp_path):
    """A plain loop over floats, for one of the batched runs, with the kick of xi_0 = 0 in it."""
    choices = [plane.Gains("a", 0.01), plane.Gains("b", 0.01, 3.0, 0.5)]
    run = TargetRun("plane", "smoke", tmp_path)
    both = plane.runs(run, choices, steps=60)
    x = plane.START.clone().requires_grad_()
    mu, xi = 0.0, 0.0
    for step in range(60):
        e = plane.violation(x).item()
        smoothed = 0.5 * xi + 0.5 * e if step else 0.0
        mu += 0.01 * e + 3.0 * (smoothed - xi)
        xi = smoothed
        assert both[1].multiplier[step].item() == pytest.approx(mu, rel=1e-9)
        (gradient,) = torch.autograd.grad(plane.objective(x) + mu * plane.violation(x), x)
        x = (x.detach() - plane.LR * gradient).requires_grad_()
    assert (both[0].x - both[1].x).abs().max() > 1e-3


def test_optima_are_stationary():
    known = plane.optima()
    for point in (known.constrained, known.local):
        at = point.clone().requires_grad_()
        (gf,) = torch.autograd.grad(plane.objective(at), at)
        (gh,) = torch.autograd.grad(plane.violation(at), at)
        assert abs(plane.violation(at).item()) < 1e-7
        assert abs(gf[0] * gh[1] - gf[1] * gh[0]).item() < 1e-4  # the gradients are parallel
    assert plane.objective(known.constrained) < plane.objective(known.local)
    at = known.unconstrained.clone().requires_grad_()
    assert torch.autograd.grad(plane.objective(at), at)[0].abs().max() < 1e-6
