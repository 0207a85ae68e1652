"""Jobs through submitit's local executor: real processes, killed and failing ones among them."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from nupi.paper import command, jobs, runner
from nupi.paper.jobs import submission

MODULE = """
import os, pathlib, signal
import torch

def square(x, log):
    with open(log, "a") as file:
        file.write(f"{x}\\n")
    return torch.tensor(x * x)

def temper(x, folder):
    mark = pathlib.Path(folder) / f"tried-{x}"
    tries = int(mark.read_text()) + 1 if mark.exists() else 1
    mark.write_text(str(tries))
    if x == "killed once" and tries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if x == "killed always":
        os.kill(os.getpid(), signal.SIGKILL)
    if x == "fails":
        raise ArithmeticError("one is too many")
    return tries
"""
LOCAL = {"cluster": "local"}


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "submitted_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    import submitted_by_a_test

    yield submitted_by_a_test
    del sys.modules["submitted_by_a_test"]


def test_a_killed_job_is_resumed_and_a_failed_one_is_reported_with_its_log(work, tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "ATTEMPTS", 2)
    cases = ("good", "killed once", "killed always", "fails")
    settings = [{"x": x, "folder": str(tmp_path)} for x in cases]
    with jobs.submitted(LOCAL):
        outcomes = {o.settings["x"]: o for o in jobs.run(work.temper, settings, tmp_path / "kept")}
    assert outcomes["good"].value == 1
    assert outcomes["killed once"].value == 2
    assert "was killed or crashed, at attempt 2 of 2" in outcomes["killed always"].failure
    assert (tmp_path / "tried-killed always").read_text() == "2"
    assert "ArithmeticError: one is too many" in outcomes["fails"].failure
    assert (tmp_path / "tried-fails").read_text() == "1"  # it would fail again
    for failed in ("fails", "killed always"):
        assert f"its log, {tmp_path / 'kept' / 'logs'}" in outcomes[failed].failure

    again = {o.settings["x"]: o.cached for o in jobs.run(work.temper, settings[:2], tmp_path / "kept")}
    assert again == {"good": True, "killed once": True}


def test_reproduce_runs_a_targets_jobs_through_submitit(work, tmp_path, monkeypatch):
    log = tmp_path / "log"

    def function(run):
        wanted = [{"x": x, "log": str(log)} for x in (2, 3)]
        found = jobs.values(run.progress(jobs.run(work.square, wanted, run.out / "runs"), "squares", total=2))
        here = {settings["x"]: int(value) for settings, value in found}
        return [runner.Claim("squares are squares", "4 and 9", str(here), here == {2: 4, 3: 9})]

    target = runner.Target("squares", "nowhere", "a test", ("smoke",), function)
    monkeypatch.setattr(runner, "find_target", lambda _: target)
    arguments = ["reproduce", "squares", "--scale", "smoke", "--out", str(tmp_path / "out")]
    submit = [
        "--executor",
        "submitit",
        "--executor-option",
        "cluster=local",
        "--executor-option",
        "timeout_min=5",
    ]
    result = CliRunner().invoke(command.app, arguments + submit)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "squares" / "summary.json").read_text())["claims"][0]["holds"]
    assert list((tmp_path / "out" / "squares" / "runs" / "logs").glob("*_log.err"))
    result = CliRunner().invoke(command.app, arguments)  # and the other executor finds what this one kept
    assert result.exit_code == 0, result.output
    assert sorted(log.read_text().split()) == ["2", "3"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--executor", "submitit", "--executor-option", "timeout"], "is not KEY=VALUE"),
        (["--executor-option", "timeout_min=3"], "only --executor submitit takes"),
        (["--executor", "cloud"], "cloud"),
    ],
)
def test_wrong_options_are_refused(more, message):
    result = CliRunner().invoke(command.app, ["reproduce", "fairness", *more])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
