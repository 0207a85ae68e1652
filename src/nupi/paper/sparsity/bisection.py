"""Target `sparsity-bisection`: the kp that lands on the density, found by bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, Dual
from nupi.paper.sparsity.published import KP as KP_TABLES
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS
from nupi.paper.sparsity.tables import score
from nupi.tune import Bisection, bisect_kp

if TYPE_CHECKING:
    from nupi import rule

EPSILON = 0.3
TUNED_ON = 0  # the seed of the search
LOW, HIGH = 0.0, 40.0
TOLERANCE = 0.5  # points
MOST_RUNS = 8


@target(
    "sparsity-bisection",
    paper="Section 5.3: kp can be tuned by bisection",
    about="nupi.tune.bisect_kp on the density of 30%, from kp in [0, 40] to half a point, in at most 8 runs",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_bisection(run: TargetRun) -> list[Claim]:
    """Search kp from both starts, and say what the searches found."""
    starts: tuple[rule.Init, ...] = ("bumpless", "zero")
    if dry_run(run, len(starts) * MOST_RUNS):
        return []
    searches = {init: bisection(run, init) for init in starts}
    made = [
        frame(trained).assign(search=init, run=range(1, len(trained) + 1))
        for init, (_, trained) in searches.items()
    ]
    run.results(pd.concat(made))
    published = {dual.kp: row.violation for dual, row in KP_TABLES[EPSILON].items()}
    rows = [
        {
            "start": init,
            "run": number,
            "kp": each.kp,
            "violation": f"{each.violation:+.2f}",
            "(paper)": f"{published[each.kp]:+.1f}" if each.kp in published else "",
        }
        for init, (search, _) in searches.items()
        for number, each in enumerate(search.runs, start=1)
    ]
    run.table("Every run of both searches, violations in points", pd.DataFrame(rows))
    return score(run, [_verdict(init, search) for init, (search, _) in searches.items()])


def bisection(run: TargetRun, init: rule.Init) -> tuple[Bisection, list[Trained]]:
    """The search for kp on the first seed, and its runs: jobs like any other, so they are kept and shared."""
    made: list[Trained] = []

    def violation(kp: float) -> float:
        dual = Dual(kp=kp, init=init) if kp else GA  # without kp there is no start to choose
        made.extend(train_all(run, [Wanted(dual, EPSILON, TUNED_ON)]))
        return made[-1].violation

    return bisect_kp(violation, LOW, HIGH, tolerance=TOLERANCE, max_runs=MOST_RUNS), made


def _verdict(init: str, search: Bisection) -> Claim:
    return Claim(
        f'bisection of kp in [{LOW:g}, {HIGH:g}] from the start "{init}" comes within {TOLERANCE} points',
        "kp can be tuned by bisection",
        f"{search.status}: {search.violation:+.2f} at kp = {search.kp:g}, {len(search.runs)} runs",
        search.status == "converged" and len(search.runs) <= MOST_RUNS,
    )
