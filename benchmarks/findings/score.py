"""Precision and recall of a diagnosis, by kind of finding."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nupi.monitor import KINDS, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.findings.training import Run


def found_in(run: Run) -> set[str]:
    """The kinds that the diagnosis finds in a run."""
    findings = judge(
        run.violation,
        run.multiplier,
        inequality=run.inequality,
        ki=run.ki,
        kp=run.kp,
        nu=run.nu,
        upper=run.upper,
    )
    return {finding.kind for finding in findings}


def score(runs: Iterable[Run]) -> dict[str, Any]:
    """Runs, precision and recall by kind; the findings by family; and the share of healthy runs with any finding.

    Some kinds may be found in a run and need not be (a diverging run also swings); they do not count.
    """
    right, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    families: dict[str, Counter[str]] = {}
    healthy = alarmed = total = 0
    for run in runs:
        kinds = found_in(run)
        total += 1
        right.update(run.truth & kinds)
        missed.update(run.truth - kinds)
        wrong.update(kinds - run.truth - run.also)
        families.setdefault(run.family, Counter()).update([", ".join(sorted(kinds)) or "nothing"])
        if not run.truth:
            healthy += 1
            alarmed += bool(kinds)
    kinds_scored = {
        kind: {
            "runs": right[kind] + missed[kind],
            "recall": round(right[kind] / (right[kind] + missed[kind]), 4),
            "precision": round(right[kind] / max(1, right[kind] + wrong[kind]), 4),
        }
        for kind in KINDS
        if right[kind] + missed[kind]
    }
    return {
        "runs": total,
        "kinds": kinds_scored,
        "healthy": {"runs": healthy, "with_findings": alarmed, "share": round(alarmed / max(1, healthy), 4)},
        "families": {family: dict(counts) for family, counts in families.items()},
    }
