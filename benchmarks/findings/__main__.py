"""`python -m benchmarks.findings [OUT]`: score the findings on seeds that were not used to choose thresholds.

The thresholds of `nupi.monitor` were chosen on seeds below 1000. Writes `summary.json`; exits 1 if a goal is missed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.findings.runs import FAMILIES, make
from benchmarks.findings.score import score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.findings.training import Run

FIRST, RUNS, NETWORKS = 1000, 60, 10  # the first seed, and how many of each family; networks take longer
RECALL, ALARMS = 0.9, 0.02


def held_out() -> Iterator[Run]:
    """The runs of the report."""
    for family in FAMILIES:
        count = NETWORKS if family.startswith("network") else RUNS
        for seed in range(FIRST, FIRST + count):
            try:
                yield make(family, seed, 20 if family.startswith("network") else 300)
            except RuntimeError as none:  # noqa: PERF203 - a family may have no clear run for a seed
                print(none, file=sys.stderr)
        print(family, file=sys.stderr)


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/monitor")
    start = time.perf_counter()
    scored = score(held_out())
    claims = [
        {
            "claim": f"recall of {kind} is at least {RECALL:.0%}",
            "paper": None,
            "here": f"{scored['kinds'][kind]['recall']:.1%} of {scored['kinds'][kind]['runs']} runs",
            "holds": scored["kinds"][kind]["recall"] >= RECALL,
        }
        for kind in ("diverging", "oscillating", "infeasible")
    ]
    healthy = scored["healthy"]
    claims.append(
        {
            "claim": f"at most {ALARMS:.0%} of healthy runs have any finding",
            "paper": None,
            "here": f"{healthy['with_findings']} of {healthy['runs']} runs",
            "holds": healthy["share"] <= ALARMS,
        }
    )
    seconds = round(time.perf_counter() - start, 1)
    summary = {"target": "monitor", "scale": "laptop", "seconds": seconds, "claims": claims, **scored}
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    sys.exit(not all(claim["holds"] for claim in claims))


if __name__ == "__main__":
    main()
