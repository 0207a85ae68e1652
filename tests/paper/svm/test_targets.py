"""Every SVM target at smoke scale: its claims hold, but for those known, and what it leaves behind can be read."""

import json

import pandas as pd
import pytest
from rich.console import Console

from nupi.paper.runner import find_target, reproduce
from nupi.paper.svm import dynamics, runs

KNOWN = {
    # At their best step sizes restarts and Adam creep up to lambda* and do not oscillate: the paper says that all do.
    "svm-dynamics": [
        "multiplier 64 oscillates about lambda* in all baselines: it crosses it more than once",
    ],
    # The thinned grid of this scale has a tie of nu = 0 and -0.5; on the paper's own grid the claim holds.
    "svm-nu": ["nu = 0 has the most converging settings"],
}


LONG = ["svm-dynamics", "svm-nu", "svm-beyond"]


@pytest.mark.parametrize(
    "name", ["svm-sensitivity", *(pytest.param(name, marks=pytest.mark.nightly) for name in LONG)]
)
def test_claims_hold_at_smoke_scale(name, tmp_path):
    claims = reproduce(find_target(name), "smoke", tmp_path, Console(quiet=True))
    failing = [claim.claim for claim in claims if not claim.holds]
    assert failing == KNOWN.get(name, [])
    check_what_is_left(name, tmp_path)


@pytest.mark.parametrize("name", LONG)
def test_every_target_gets_to_its_end(name, tmp_path, monkeypatch):
    """The small twin of the test above: so few steps that claims mean nothing, but all of them are made."""
    for module in (dynamics, runs):
        monkeypatch.setattr(module, "STEPS", 600)
    monkeypatch.setattr(dynamics, "PLOTTED", 600)
    reproduce(find_target(name), "smoke", tmp_path, Console(quiet=True))
    check_what_is_left(name, tmp_path)
    assert (tmp_path / name / "report.html").exists() == (name == "svm-dynamics")


def check_what_is_left(name, tmp_path):
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["scale"] == "smoke"
    assert len(summary["claims"]) >= 3
    assert (tmp_path / name / "figure.png").stat().st_size > 10_000
    assert len(pd.read_csv(tmp_path / name / "results.csv")) > 50
