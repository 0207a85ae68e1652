"""The docs say what the evidence says, and the evidence is whole."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from nupi.paper import evidence, runner
from nupi.paper.command import app

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = sorted(ROOT.glob("docs/*.md"))
SUMMARY = {
    "target": "apples",
    "scale": "smoke",
    "seconds": 1.5,
    "claims": [
        {"claim": "red | green", "paper": "1", "here": "1.0", "holds": True},
        {"claim": "sweet", "paper": "yes", "here": "no", "holds": False},
    ],
    "finished": "2026-01-02T03:04:05+00:00",
    "commit": "abc",
    "tables": [{"title": "t", "columns": ["name", "share"], "rows": [["a", 0.123456], ["b", None]]}],
}
PAGE = """before
<!-- results: apples/smoke claims -->
<!-- end of results -->
between
<!-- results: apples/smoke table 0 -->
old
<!-- end of results -->
after
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_of_a_page_is_what_its_evidence_says(page):
    text = page.read_text(encoding="utf-8")
    assert evidence.written(text, RESULTS) == text, "run: nupi results tables docs/*.md"


def test_the_evidence_is_of_targets_that_exist_at_scales_they_have():
    kept = list(evidence.every(RESULTS))
    assert kept
    targets = runner.all_targets()
    for run in kept:
        assert run.scale in targets[run.target].scales
        assert not run.summary.get("dry_run")
        folder = RESULTS / run.target / run.scale
        assert sorted(path.name for path in folder.iterdir()) == ["results.csv", "summary.json"]
        assert len(pd.read_csv(folder / "results.csv")) > 0
        assert (folder / "results.csv").stat().st_size < 1.1 * evidence.MOST_BYTES


def test_every_figure_of_a_page_is_there():
    for page in PAGES:
        for name in page.read_text(encoding="utf-8").split("](figures/")[1:]:
            assert (ROOT / "docs" / "figures" / name.partition(")")[0]).is_file(), f"{page.name}: {name[:40]}"


@pytest.fixture
def kept(tmp_path):
    """A run as `nupi reproduce` leaves it, and where evidence is kept."""
    run = tmp_path / "out" / "apples"
    run.mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    pd.DataFrame({"x": range(1000), "y": [1 / 3] * 1000}).to_csv(run / "results.csv", index=False)
    return run, tmp_path / "results"


def invoke(*arguments):
    return CliRunner().invoke(app, ["results", *map(str, arguments)])


def test_tables_are_written_from_what_was_kept(kept, tmp_path):
    run, folder = kept
    assert invoke("add", run, "--folder", folder).exit_code == 0
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert invoke("tables", page, "--folder", folder, "--check").exit_code == 1
    assert page.read_text() == PAGE
    assert invoke("tables", page, "--folder", folder).exit_code == 0
    assert (
        page.read_text()
        == """before
<!-- results: apples/smoke claims -->
| claim | paper | here | holds |
| --- | --- | --- | --- |
| red \\| green | 1 | 1.0 | yes |
| sweet | yes | no | **no** |
<!-- end of results -->
between
<!-- results: apples/smoke table 0 -->
| name | share |
| --- | --- |
| a | 0.1235 |
| b |  |
<!-- end of results -->
after
"""
    )
    assert invoke("tables", page, "--folder", folder, "--check").exit_code == 0


def test_the_list_says_what_was_run_when_and_from_which_commit(kept):
    run, folder = kept
    assert "holds no runs" in invoke("--folder", folder).output
    invoke("add", run, "--folder", folder)
    shown = " ".join(invoke("--folder", folder).output.split())
    for word in ("apples", "smoke", "1 of 2", "2026-01-02 03:04", "abc"):
        assert word in shown


def test_a_page_can_list_every_run(kept, tmp_path):
    run, folder = kept
    invoke("add", run, "--folder", folder)
    page = tmp_path / "page.md"
    page.write_text("<!-- results: every run -->\n<!-- end of results -->\n")
    assert invoke("tables", page, "--folder", folder).exit_code == 0
    row = "| apples | smoke | 1 of 2 | 2 | 2026-01-02 03:04 | abc |"
    assert row in page.read_text().splitlines()


def test_large_results_are_thinned_evenly_and_numbers_have_six_digits(kept, monkeypatch):
    run, folder = kept
    monkeypatch.setattr(evidence, "MOST_BYTES", 6_000)
    frame = pd.read_csv(evidence.keep(run, folder) / "results.csv")
    assert frame["x"].tolist() == list(range(0, 1000, 3))
    assert set(frame["y"]) == {0.333333}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<!-- results: pears/smoke claims -->\n<!-- end of results -->", "summary.json does not exist"),
        ("<!-- results: apples/smoke table 1 -->\n<!-- end of results -->", "has 1 tables"),
        ("<!-- results: apples/smoke claims -->\nno end", "1 tables are asked for and 0 can be read"),
        ("<!-- results: apples/smoke sums -->\n<!-- end of results -->", "1 tables are asked for and 0"),
    ],
)
def test_what_cannot_be_shown_is_said(kept, page, words):
    run, folder = kept
    evidence.keep(run, folder)
    with pytest.raises(evidence.EvidenceError, match=words):
        evidence.written(page, folder)


def test_a_dry_run_and_a_broken_summary_are_no_evidence(kept):
    run, folder = kept
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"dry_run": True, "claims": []}))
    refused = invoke("add", run, "--folder", folder)
    assert refused.exit_code == 2
    assert "is a dry run, which is no evidence" in refused.output
    for broken in ("{", "[]", json.dumps(SUMMARY | {"claims": [{"claim": "c"}]})):
        (run / "summary.json").write_text(broken)
        assert invoke("add", run, "--folder", folder).exit_code == 2
    assert not folder.exists()
