"""The scores in the docs are those of the committed summary, and its claims hold."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUMMARY = json.loads((ROOT / "results/monitor/summary.json").read_text())
PAGE = (ROOT / "docs/monitor.md").read_text()


def test_every_kind_has_its_scores():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \|$", PAGE, re.MULTILINE)
    found = {kind: (int(runs), float(recall), float(precision)) for kind, runs, recall, precision in rows}
    expected = {
        kind: (scores["runs"], round(100 * scores["recall"], 1), round(100 * scores["precision"], 1))
        for kind, scores in SUMMARY["kinds"].items()
    }
    assert found == expected


def test_healthy_runs():
    healthy = SUMMARY["healthy"]
    assert f"{healthy['with_findings']} of {healthy['runs']} healthy runs" in PAGE


def test_the_goals_are_met():
    assert all(claim["holds"] for claim in SUMMARY["claims"])
