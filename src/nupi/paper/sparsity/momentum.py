"""Target `sparsity-momentum`: the ablation of the momentum of Polyak and Nesterov."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity import published
from nupi.paper.sparsity.ablation import few, show, wanted
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.runs import Trained, train_all
from nupi.paper.sparsity.scales import OPTIONS
from nupi.paper.sparsity.tables import by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

OVERSHOT = 5.0  # points


@target(
    "sparsity-momentum",
    paper="Figure 24, tables 15 and 16: momentum",
    about="Polyak and Nesterov with beta from -0.9 to 0.9 at 30%",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_momentum(run: TargetRun) -> list[Claim]:
    """Train with every momentum of both kinds, and compare."""
    tables = {
        "Polyak": {0.3: few(run.scale, published.POLYAK)},
        "Nesterov": {0.3: few(run.scale, published.NESTEROV)},
    }
    if dry_run(run, len(wanted(run, tables))):
        return []
    trained = train_all(run, wanted(run, tables))
    show(run, trained, tables, lambda dual: dual.beta, name=r"Momentum $\beta$", log=False)
    return score(run, momentum_claims(trained))


def momentum_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of momentum."""
    methods = by_method(trained, 0.3)
    violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
    claims = []
    for title, rows in (("Polyak", published.POLYAK), ("Nesterov", published.NESTEROV)):
        ours = {dual: violation[dual] for dual in rows if dual in violation}
        largest = max(ours, key=lambda dual: dual.beta)
        said = [row.violation for row in rows.values()]
        claims += [
            Claim(
                f"{title}: every momentum overshoots by more than {OVERSHOT:g} points",
                f"{min(said):+.1f} to {max(said):+.1f}",
                ", ".join(f"{found:+.1f} at {dual.beta:g}" for dual, found in ours.items()),
                max(ours.values()) < -OVERSHOT,
            ),
            Claim(
                f"{title}: the largest momentum overshoots most",
                f"{rows[largest].violation:+.1f}",
                f"{ours[largest]:+.1f} against at most {min(ours.values()):+.1f}",
                ours[largest] == min(ours.values()),
            ),
        ]
    return claims
