"""The target `self-tuned-steep`: what its task is, and how runs are counted."""

import pandas as pd
import pytest
import torch
from rich.console import Console

from nupi.paper.runner import TargetRun
from nupi.paper.self_tuned import steep


def test_the_task_is_a_bound_on_decisions_seen_through_a_surrogate():
    task = steep.steep(sharpness=4.0, seed=3)
    loss, violations = task.evaluate()
    assert loss.requires_grad
    rate = violations["rate"]
    hard = rate.hard.item() + 0.15
    assert hard * steep.BATCH == pytest.approx(round(hard * steep.BATCH))  # a share of 128 rows
    assert rate.soft.requires_grad
    before = task.judge()
    for _ in range(task.steps - 1):
        loss.backward()
        task.primal.step()
        task.primal.zero_grad()
        loss, _ = task.evaluate()
    after = task.judge()
    assert after["accuracy"] > max(0.9, before["accuracy"])
    assert after["violation"] > 0.05  # without a multiplier the limit is not met
    assert task.primal.param_groups[0]["lr"] < 1e-6  # the end of the cosine


def test_the_same_seed_is_the_same_task():
    one, other = (steep.steep(sharpness=1.0, seed=5).evaluate()[0] for _ in range(2))
    assert torch.equal(one, other)


def test_runs_are_counted_by_the_limit():
    rows = [
        {"surrogate": "sigmoid(z)", "method": method, "violation": violation, "accuracy": 0.8}
        for method, found in {"SelfTuned": (0.0, 0.005, 0.02), "other": (0.0, 0.5, 0.5)}.items()
        for violation in found
    ]
    table = steep._counted(pd.DataFrame(rows), ["sigmoid(z)"], ("SelfTuned", "other"))
    assert table["all"].tolist() == ["2 of 3", "1 of 3"]
    claim = steep._claim(pd.DataFrame(rows), ["sigmoid(z)"])
    assert claim.holds
    assert claim.here == "2 of 3; other 1 of 3"
    worse = pd.DataFrame([{**row, "violation": 0.0} if row["method"] == "other" else row for row in rows])
    assert not steep._claim(worse, ["sigmoid(z)"]).holds


@pytest.mark.usefixtures("quick_workers")
def test_the_target_at_smoke_scale(tmp_path):
    run = TargetRun("self-tuned-steep", "smoke", tmp_path / "steep", Console(quiet=True))
    (claim,) = steep.self_tuned_steep(run)
    assert claim.here.startswith("1 of 1")
    assert (tmp_path / "steep" / "figure.png").stat().st_size > 5_000
