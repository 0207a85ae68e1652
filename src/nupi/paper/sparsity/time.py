"""Target `sparsity-time`, beyond the paper: does it matter that the short momenta are not rescaled with the time?

A run of fewer steps is the paper's played faster (see `nupi.paper.sparsity.scales`). beta1 of the Adams and the dual
momentum are left as they are, since they would reach back over less than one step. Here they follow, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.dynamics import ADAM, EPSILON, NUPI, POLYAK
from nupi.paper.sparsity.methods import GA
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS, SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 2.0  # points by which a violation may change before the choice is said to matter


@target(
    "sparsity-time",
    paper="(not in the paper)",
    about="the runs at 30% with Adam's beta1 and the dual momentum rescaled with the time, and without",
    scales=("smoke", "laptop", "desk"),
    options=OPTIONS,
)
def sparsity_time(run: TargetRun) -> list[Claim]:
    """Train four methods with both rescalings, and compare where they end."""
    seeds = range(SEEDS[run.scale])
    wanted = [Wanted(dual, EPSILON, seed) for seed in seeds for dual in (GA, POLYAK, ADAM, NUPI)]
    if dry_run(run, 2 * len(wanted)):
        return []
    short = train_all(run, wanted)
    alike = train_all(replace(run, options=run.options | {"rescale": "all"}), wanted)
    parts = {"beta2 alone": short, "all momenta": alike}
    run.results(pd.concat([frame(trained).assign(rescaled=name) for name, trained in parts.items()]))
    for name, trained in parts.items():
        run.table(f"Rescaled with the time: {name}", beside(by_method(trained, EPSILON), {}))
    return score(run, time_claims(short, alike))


def time_claims(short: Sequence[Trained], alike: Sequence[Trained]) -> list[Claim]:
    """By how much the final violation of each method changes."""
    ends = [
        {dual: mean(seeds, lambda each: each.violation) for dual, seeds in by_method(part, EPSILON).items()}
        for part in (short, alike)
    ]
    return [
        Claim(
            f"{dual.label}: rescaling the short momenta too changes the final violation by less than {MOST:g} points",
            "(not in the paper)",
            f"{ends[0][dual]:+.1f} without, {ends[1][dual]:+.1f} with",
            abs(ends[0][dual] - ends[1][dual]) < MOST,
        )
        for dual in ends[0]
    ]
