"""Every target of the theory through the real command: its claims hold, and what it writes is whole."""

import json

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from nupi.paper.analysis import sheet
from nupi.paper.command import app
from nupi.paper.plane import problem as plane
from nupi.paper.runner import Run


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("sheet", 5),
        ("relative-update", 9),
        ("spectrum", 10),
        ("bilinear", 7),
        ("plane-kp", 9),
        ("plane-nu", 5),
    ],
)
def test_claims_hold(name, claims, tmp_path):
    ran = CliRunner().invoke(app, ["reproduce", name, "--scale", "smoke", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert len(summary["claims"]) == claims
    assert all(claim["holds"] for claim in summary["claims"])
    assert (tmp_path / name / "figure.png").stat().st_size > 20_000
    assert len(pd.read_csv(tmp_path / name / "results.csv")) > 100


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
    run = Run("plane", "smoke", tmp_path)
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


@pytest.mark.parametrize(("gamma", "kp"), [(0.0, -1.0), (1.0, -0.5)])
def test_gains_fitted_to_a_run_of_momentum(tmp_path, gamma, kp):
    """At alpha = beta = 1/2 the theorem by hand: ki = 1, and kp = -1 for Polyak, -1/2 for Nesterov."""
    betas = torch.tensor([0.5], dtype=torch.float64)
    fitted = sheet._fit(Run("sheet", "paper", tmp_path), betas, gamma, "runs")
    assert [float(part) for part in fitted] == pytest.approx([1.0, kp, 0.0], abs=1e-9)


def test_everything_long_in_the_sheet_shows_its_progress(tmp_path, monkeypatch):
    shown = []
    track = Run.progress
    monkeypatch.setattr(Run, "progress", lambda run, *args: (shown.append(args[1]), track(run, *args))[1])
    sheet.sheet(Run("sheet", "paper", tmp_path))
    assert shown == ["runs of Polyak's method", "runs of Nesterov's method", "drawing figure.png"]
