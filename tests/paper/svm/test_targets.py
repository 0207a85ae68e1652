"""Every SVM target at smoke scale: its claims hold, but for those known, and what it leaves behind can be read."""

import json

import pandas as pd
import pytest
from rich.console import Console

from nupi.paper.runner import find_target, reproduce

KNOWN = {
    # At their best step sizes restarts and Adam creep up to lambda* and do not oscillate: the paper says that all do.
    "svm-dynamics": [
        "multiplier 64 oscillates about lambda* in all baselines: it crosses it more than once",
    ],
    # The thinned grid of this scale has a tie of nu = 0 and -0.5; on the paper's own grid the claim holds.
    "svm-nu": ["nu = 0 has the most converging settings"],
}


@pytest.mark.parametrize("name", ["svm-dynamics", "svm-sensitivity", "svm-nu", "svm-beyond"])
def test_claims_hold_at_smoke_scale(name, tmp_path):
    claims = reproduce(find_target(name), "smoke", tmp_path, Console(quiet=True))
    failing = [claim.claim for claim in claims if not claim.holds]
    assert failing == KNOWN.get(name, [])
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["scale"] == "smoke"
    assert len(summary["claims"]) >= 3
    assert (tmp_path / name / "figure.png").stat().st_size > 10_000
    assert len(pd.read_csv(tmp_path / name / "results.csv")) > 50
