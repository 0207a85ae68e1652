"""Target `sparsity-adam`: the ablation of Adam's step size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity import published
from nupi.paper.sparsity.ablation import densities, few, show, wanted
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.runs import Trained, train_all
from nupi.paper.sparsity.scales import OPTIONS
from nupi.paper.sparsity.tables import by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

NEAR = 1.0  # points from the boundary
TURN = 2.0  # points: more than the noise of a run


@target(
    "sparsity-adam",
    paper="Figure 23, tables 13 and 14: the step size of Adam",
    about="Adam on the multiplier with 8 step sizes at 50 and 30%",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_adam(run: TargetRun) -> list[Claim]:
    """Train with every step size of Adam, and compare."""
    rows = {epsilon: few(run.scale, published.ADAM[epsilon]) for epsilon in densities(run.scale)}
    tables = {"Adam": rows}
    if dry_run(run, len(wanted(run, tables))):
        return []
    trained = train_all(run, wanted(run, tables))
    name = "Adam's step size"
    show(run, trained, tables, lambda dual: dual.step, name=name, log=True)
    return score(run, adam_claims(trained))


def adam_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of Adam."""
    claims = []
    for epsilon in dict.fromkeys(each.wanted.epsilon for each in trained):
        paper = published.ADAM[epsilon]
        methods = by_method(trained, epsilon)
        violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
        accuracy = {dual: mean(seeds, lambda each: each.train) for dual, seeds in methods.items()}
        first, *_, last = methods
        near = [dual for dual in methods if abs(violation[dual]) <= NEAR]
        at = f"at {epsilon:.0%}: "
        claims += [
            Claim(
                f"{at}the smallest step size ends infeasible",
                f"{paper[first].violation:+.1f}",
                f"{violation[first]:+.1f}",
                violation[first] > 0,
            ),
            Claim(
                f"{at}with the step size the violation falls and rises again, by more than {TURN:g} points each",
                ", ".join(f"{row.violation:+.1f}" for dual, row in paper.items() if dual in violation),
                ", ".join(f"{found:+.1f}" for found in violation.values()),
                _falls_and_rises(list(violation.values()), TURN),
            ),
            Claim(
                f"{at}a range of step sizes lands: at least two end within {NEAR:g} point",
                ", ".join(f"{dual.step:g}" for dual, row in paper.items() if abs(row.violation) <= NEAR),
                ", ".join(f"{dual.step:g}" for dual in near) or "none",
                len(near) >= 2,
            ),
            Claim(
                f"{at}the largest step size costs accuracy",
                f"{paper[last].train:.1f}% against {paper[first].train:.1f}% at the smallest",
                f"{accuracy[last]:.1f}% against {accuracy[first]:.1f}%",
                accuracy[last] < accuracy[first] - 3,
            ),
        ]
    return claims


def _falls_and_rises(values: Sequence[float], by: float) -> bool:
    """Whether some value lies lower by so much than one before it and one after it."""
    return any(
        max(values[:i]) > values[i] + by and max(values[i + 1 :]) > values[i] + by
        for i in range(1, len(values) - 1)
    )
