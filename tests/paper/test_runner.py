import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import nupi
from nupi.paper import runner, style
from nupi.paper.command import app
from nupi.paper.runner import Claim, TargetRun, target


@pytest.fixture
def registry(monkeypatch):
    """An empty registry, so that these tests see their own targets alone."""
    monkeypatch.setattr(runner, "_registry", {})
    monkeypatch.setattr(runner.targets, "MODULES", ())


@pytest.fixture
def two_targets(registry):  # noqa: ARG001 - a fixture cannot carry usefixtures
    """One whose claims hold and that writes everything, and one whose second claim fails."""

    @target("apples", paper="Fig. 1", about="all is well", scales=("smoke", "paper"))
    def apples(run: TargetRun) -> list[Claim]:
        fig = style.figure(2, 1)
        fig.add_subplot().plot([0, 1], [1, 0])
        run.figure(fig)
        run.results(pd.DataFrame({"x": [1, 2], "y": [0.5, float("nan")]}))
        run.table("counted", pd.DataFrame({"name": ["a"], "count": [3], "share": [float("nan")]}))
        return [Claim("sum is in [1, 3]", "3", str(1 + 2), np.float64(3.0) == 3.0)]

    @target("pears", paper="Tab. 2", about="one claim fails", scales=("paper",))
    def pears(_: TargetRun) -> list[Claim]:
        return [Claim("right", "1", "1", True), Claim("wrong", "1", "2", False)]


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.usefixtures("two_targets")
def test_list_shows_every_target_with_its_place_in_the_paper():
    shown = invoke("list")
    assert shown.exit_code == 0
    for word in ("apples", "Fig. 1", "pears", "Tab. 2", "smoke paper"):
        assert word in shown.output


@pytest.mark.usefixtures("two_targets")
def test_a_target_writes_figure_results_and_summary(tmp_path):
    ran = invoke("reproduce", "apples", "--scale", "smoke", "--out", tmp_path)
    assert ran.exit_code == 0, ran.output
    assert "sum is in [1, 3]" in ran.output  # not taken for markup
    folder = tmp_path / "apples"
    assert sorted(path.name for path in folder.iterdir()) == ["figure.png", "results.csv", "summary.json"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "results.csv").read_text() == "x,y\n1,0.5\n2,\n"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("seconds") >= 0
    assert summary.pop("version") == nupi.__version__
    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", summary.pop("commit"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", summary.pop("finished"))
    assert summary == {
        "target": "apples",
        "scale": "smoke",
        "claims": [{"claim": "sum is in [1, 3]", "paper": "3", "here": "3", "holds": True}],
        "tables": [{"title": "counted", "columns": ["name", "count", "share"], "rows": [["a", 3, None]]}],
    }


@pytest.mark.usefixtures("two_targets")
def test_a_claim_that_fails_is_shown_and_exits_1(tmp_path):
    ran = invoke("reproduce", "pears", "apples", "--scale", "paper", "--out", tmp_path)
    assert ran.exit_code == 1
    assert "pears: 1 of 2 claims do not hold" in ran.output
    claims = json.loads((tmp_path / "pears/summary.json").read_text())["claims"]
    assert [claim["holds"] for claim in claims] == [True, False]
    assert (tmp_path / "apples/summary.json").exists()


@pytest.mark.usefixtures("two_targets")
def test_a_missing_scale_falls_back_to_the_nearest_larger_and_says_so(tmp_path):
    ran = invoke("reproduce", "apples", "--scale", "laptop", "--out", tmp_path)
    assert "has no scale 'laptop': using 'paper'" in ran.output
    assert json.loads((tmp_path / "apples/summary.json").read_text())["scale"] == "paper"


@pytest.mark.parametrize(
    ("has", "asked", "used"),
    [
        (("smoke", "desk"), "laptop", "desk"),
        (("smoke", "desk"), "paper", "desk"),
        (("smoke",), "paper", "smoke"),
        (("paper", "smoke"), "smoke", "smoke"),
    ],
)
def test_nearest_scale(has, asked, used):
    assert runner.nearest_scale(has, asked) == used


@pytest.mark.usefixtures("two_targets")
def test_an_unknown_target_is_refused_with_the_nearest_name_before_anything_runs(tmp_path):
    ran = invoke("reproduce", "apples", "pear", "--out", tmp_path)
    assert ran.exit_code == 2
    said = " ".join(ran.output.replace("│", " ").split())
    assert "no target is called 'pear'" in said
    assert "did you mean 'pears'?" in said
    assert not (tmp_path / "apples").exists()


@pytest.mark.usefixtures("two_targets")
def test_a_target_that_raises_leaves_the_others_and_no_stale_summary(tmp_path):
    folder = tmp_path / "plums"
    folder.mkdir()
    for name in ("summary.json", "results.csv", "figure.png", "figure-old.png", "cache.pt"):
        (folder / name).write_text("{}")

    @target("plums", paper="Fig. 3", about="fails", scales=("paper",))
    def plums(_: TargetRun) -> list[Claim]:
        raise ZeroDivisionError("the stone was missing")

    ran = invoke("reproduce", "plums", "apples", "--out", tmp_path)
    assert ran.exit_code == 1
    assert "plums failed: ZeroDivisionError: the stone was missing" in ran.output
    assert [path.name for path in folder.iterdir()] == ["cache.pt"]
    assert json.loads((tmp_path / "apples/summary.json").read_text())["claims"][0]["holds"]


@pytest.mark.usefixtures("two_targets")
def test_a_name_in_capitals_is_still_near():
    with pytest.raises(runner.UnknownTargetError, match="did you mean 'apples'"):
        runner.find_target("AP_PLES")


@pytest.mark.usefixtures("two_targets")
@pytest.mark.parametrize("where", ["file", "file/below", "taken"])
def test_an_output_that_cannot_be_written_is_refused_in_one_line_before_anything_runs(tmp_path, where):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "apples").write_text("mine")  # where the target's directory would be
    ran = invoke("reproduce", "apples", "pears", "--out", tmp_path / where)
    assert ran.exit_code == 2
    assert ran.output.startswith(f"--out {tmp_path / where}: cannot write there: ")
    assert len(ran.output.splitlines()) == 1
    assert not (tmp_path / where / "pears").exists()


@pytest.mark.parametrize("holds", [float("nan"), 1, "yes", None, np.array([True]), torch.tensor(1.0)])
def test_a_verdict_that_is_no_boolean_is_refused(holds):
    with pytest.raises(TypeError, match="of claim 'c' is no boolean"):
        Claim("c", "p", "h", holds)


@pytest.mark.parametrize("holds", [True, np.True_, torch.tensor(True)])
def test_every_kind_of_boolean_is_a_verdict(holds):
    assert Claim("c", "p", "h", holds).holds is True


@pytest.mark.usefixtures("registry")
def test_a_target_without_claims_is_an_error(tmp_path):
    @target("nothing", paper="-", about="-", scales=("paper",))
    def nothing(_: TargetRun) -> list[Claim]:
        return []

    ran = invoke("reproduce", "nothing", "--out", tmp_path)
    assert ran.exit_code == 1
    assert "made no claim" in ran.output


@pytest.mark.usefixtures("registry")
def test_registering_refuses_a_scale_that_does_not_exist():
    with pytest.raises(ValueError, match=r"scales=\('huge',\) of target 'x'"):
        target("x", paper="-", about="-", scales=("huge",))


def test_a_figure_must_be_called_figure(tmp_path):
    with pytest.raises(ValueError, match="starts with 'figure'"):
        TargetRun("x", "smoke", tmp_path).figure(style.figure(), "plot")


@pytest.mark.usefixtures("registry")
def test_a_dry_run_says_so_and_claims_nothing(tmp_path):
    @target("tried", paper="-", about="-", scales=("paper",))
    def tried(run: TargetRun) -> list[Claim]:
        run.dry = True
        return []

    ran = invoke("reproduce", "tried", "--scale", "paper", "--out", tmp_path)
    assert ran.exit_code == 0, ran.output
    assert "nothing is claimed" in ran.output
    summary = json.loads((tmp_path / "tried/summary.json").read_text())
    assert summary["dry_run"] is True
    assert summary["claims"] == []

    @target("boasting", paper="-", about="-", scales=("paper",))
    def boasting(run: TargetRun) -> list[Claim]:
        run.dry = True
        return [Claim("it runs", "-", "3 steps", True)]

    ran = invoke("reproduce", "boasting", "--scale", "paper", "--out", tmp_path)
    assert ran.exit_code == 1
    assert "made a claim after a dry run" in ran.output
    assert not (tmp_path / "boasting/summary.json").exists()


def test_a_run_shows_its_progress_on_its_console_unless_that_is_quiet(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        runner, "track", lambda items, label, total, **_: shown.append((label, total)) or items
    )
    assert list(
        TargetRun("x", "smoke", tmp_path, Console(file=io.StringIO())).progress([1, 2], "work", 2)
    ) == [1, 2]
    assert list(TargetRun("x", "smoke", tmp_path, Console(quiet=True)).progress([1, 2], "work")) == [1, 2]
    assert shown == [("work", 2)]


def test_the_colours_are_one_a_method_and_have_labels():
    assert len(set(style.COLOURS.values())) == len(style.COLOURS)
    assert set(style.LABELS) == set(style.COLOURS)
    assert len(set(style.shades("nupi", 5))) == 5
    with pytest.raises(KeyError, match="no colour for method='sgd'"):
        style.colour("sgd")


def run_python(*args, **env):
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


def test_python_m_nupi_lists_the_targets_of_the_package():
    ran = run_python("-m", "nupi", "list")
    assert ran.returncode == 0, ran.stderr
    for name in runner.all_targets():
        assert name in ran.stdout


def test_without_typer_the_command_says_what_to_install():
    blocked = "import sys; sys.modules['typer'] = None; from nupi.__main__ import main; main()"
    ran = run_python("-c", blocked)
    assert ran.returncode == 1
    assert "needs the package 'typer'" in ran.stderr
    assert "pip install 'nupi[paper]'" in ran.stderr
    assert "Traceback" not in ran.stderr
