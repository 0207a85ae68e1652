"""Runs that were recorded by other means, in a report."""

import json
import re

import pytest
import torch

import nupi
from nupi.monitor import Played, replay
from nupi.monitor.report import write_report


@pytest.mark.parametrize("size", [1, 5, 40])
def test_a_replayed_run_is_recorded_as_a_monitor_does(size):
    """A run of 300 steps, heard by a monitor and played again from what was written down by hand."""
    random = torch.Generator().manual_seed(size)
    lagrangian = nupi.Lagrangian({"run": nupi.Inequality(size)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=0.5)
    monitor = nupi.Monitor(lagrangian)
    violations, multipliers = [], []
    for _ in range(300):
        e = torch.randn(size, generator=random) + 0.1
        lagrangian.ascend(dual, {"run": e})
        violations.append(e)
        multipliers.append(lagrangian.multipliers["run"].clone())
    gains = {"lr": 1.0, "ki": 0.1, "kp": 0.5, "nu": 0.0}
    played = Played(torch.stack(violations), torch.stack(multipliers), dual="NuPI", gains=gains)
    again = replay({"run": played})
    for mine, heard in zip(again.recent(), monitor.record.recent(), strict=True):
        torch.testing.assert_close(mine, heard, equal_nan=True)
    assert nupi.monitor.diagnose(again) == monitor.diagnose()


def test_steps_that_were_thinned_out_keep_their_numbers(tmp_path):
    t = torch.arange(0.0, 4000.0, 10.0)[:, None]
    swing = Played(torch.cos(t / 80), torch.sin(t / 80), inequality=False, dual="NuPI", gains={"ki": 0.0125})
    calm = Played(torch.exp(-t / 300), 1 - torch.exp(-t / 300), inequality=False)
    record = replay({"ki too large": swing, "kp": calm}, t.reshape(-1).long().tolist(), {"target": "made up"})
    assert record.last_step == 3990
    write_report(record, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "made up" in page
    findings = re.search(r'"findings":(\[.*?\]),"info"', page)
    assert [each["constraint"] for each in json.loads(findings[1])] == ["ki too large"]


def test_runs_of_different_lengths_are_refused():
    short, long = (Played(torch.zeros(n, 2), torch.zeros(n, 2)) for n in (3, 4))
    with pytest.raises(ValueError, match=r"of one length, but lengths \[3, 4\] came"):
        replay({"a": short, "b": long})
    with pytest.raises(ValueError, match="of one length"):
        replay({"a": short}, steps=[1, 2])
