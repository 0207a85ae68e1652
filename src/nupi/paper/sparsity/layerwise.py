"""Target `sparsity-layerwise`: the paper's tables with a constraint for each gated layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.compared import EPSILONS, SMALLEST, listed, trains_best, wanted
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import OVERSHOOTING, RESTARTS, Dual
from nupi.paper.sparsity.runs import Trained, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS
from nupi.paper.sparsity.tables import below, beside, by_method, exceeds, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

DEEPEST, HIGHEST = 2.0, 1.0  # points: within these the paper's nuPI ends in every layer


@target(
    "sparsity-layerwise",
    paper="Tables 1 and 7 to 10: one constraint a layer",
    about="the same with each of 8 layers constrained: smallest, largest and range of the violations",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_layerwise(run: TargetRun) -> list[Claim]:
    """Train the tables' methods with a constraint for each layer, and compare."""
    runs = wanted(run.scale, published.KP_LAYERWISE, layerwise=True)
    if dry_run(run, len(runs)):
        return []
    trained = train_all(run, runs)
    run.results(frame(trained))
    run.figure(figures.layers(trained))
    for epsilon in EPSILONS[run.scale]:
        table = beside(by_method(trained, epsilon), published.LAYERWISE[epsilon])
        run.table(f"Density of each layer at most {epsilon:.0%}", table)
    return score(run, layerwise_claims(trained))


def layerwise_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of its tables with a constraint for each layer."""
    claims = []
    for epsilon in dict.fromkeys(each.wanted.epsilon for each in trained):
        methods = by_method(trained, epsilon)
        spread = {dual: mean(seeds, lambda each: each.spread) for dual, seeds in methods.items()}
        highest = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
        lowest = {dual: mean(seeds, lambda each: each.lowest) for dual, seeds in methods.items()}
        paper = published.LAYERWISE[epsilon]
        said = {dual: row.spread for dual, row in paper.items()}
        ours = Dual(kp=published.KP_LAYERWISE[epsilon])
        kicked = replace(ours, init="zero")
        narrowest, narrowest_said = (min(of[each] for each in OVERSHOOTING) for of in (spread, said))
        at = f"at {epsilon:.0%}: "
        claims += [
            Claim(
                f"{at}gradient ascent and momentum overshoot in every layer",
                "largest " + listed({dual: row.highest for dual, row in paper.items()}, OVERSHOOTING),
                "largest " + listed(highest, OVERSHOOTING),
                all(below(methods[each], lambda run: run.violation, -1.0) for each in OVERSHOOTING),
            ),
            Claim(
                f"{at}the violations of nuPI span a smaller range than those of gradient ascent and momentum",
                f"{said[ours]:.1f} against at least {narrowest_said:.1f}",
                f"{spread[ours]:.1f} against at least {narrowest:.1f}; from zero {spread[kicked]:.1f}",
                all(exceeds(methods[each], methods[ours], _range) for each in OVERSHOOTING),
            ),
            Claim(
                f"{at}and so do those of dual restarts",
                f"{said[RESTARTS]:.1f} against at least {narrowest_said:.1f}",
                f"{spread[RESTARTS]:.1f} against at least {narrowest:.1f}",
                all(exceeds(methods[each], methods[RESTARTS], _range) for each in OVERSHOOTING),
            ),
            Claim(
                f"{at}nuPI ends between {-DEEPEST:g} and {HIGHEST:g} points in all layers",
                f"{paper[ours].lowest:+.1f} to {paper[ours].highest:+.1f}",
                f"{lowest[ours]:+.1f} to {highest[ours]:+.1f}; "
                f"from zero {lowest[kicked]:+.1f} to {highest[kicked]:+.1f}",
                lowest[ours] >= -DEEPEST and highest[ours] <= HIGHEST,
            ),
        ]
        if epsilon != SMALLEST:
            trains = {dual: row.train for dual, row in paper.items()}
            claims += [
                Claim(
                    f"{at}by how much these overshoot differs from layer to layer, by more than 5 points",
                    f"range at least {narrowest_said:.1f}",
                    f"range at least {narrowest:.1f}",
                    narrowest > 5,
                ),
                trains_best(at, methods, trains, ours),
            ]
    return claims


def _range(trained: Trained) -> float:
    return trained.spread
