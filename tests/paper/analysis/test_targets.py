"""Every target of the theory through the real command: its claims hold, and what it writes is whole."""

import json

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from nupi.paper.analysis import sheet
from nupi.paper.command import app
from nupi.paper.runner import TargetRun


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("special-cases", 8),
        ("sheet", 5),
        ("oscillator", 5),
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


@pytest.mark.parametrize(("gamma", "kp"), [(0.0, -1.0), (1.0, -0.5)])
def test_gains_fitted_to_a_run_of_momentum(tmp_path, gamma, kp):
    """At alpha = beta = 1/2 the theorem by hand: ki = 1, and kp = -1 for Polyak, -1/2 for Nesterov."""
    betas = torch.tensor([0.5], dtype=torch.float64)
    fitted = sheet._fit(TargetRun("sheet", "paper", tmp_path), betas, gamma, "runs")
    assert [float(part) for part in fitted] == pytest.approx([1.0, kp, 0.0], abs=1e-9)


def test_everything_long_in_the_sheet_shows_its_progress(tmp_path, monkeypatch):
    shown = []
    track = TargetRun.progress
    monkeypatch.setattr(
        TargetRun, "progress", lambda run, *args: (shown.append(args[1]), track(run, *args))[1]
    )
    sheet.sheet(TargetRun("sheet", "paper", tmp_path))
    assert shown == ["runs of Polyak's method", "runs of Nesterov's method", "drawing figure.png"]
