"""Target `sparsity-global`: the paper's tables with one constraint on the whole network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, Run, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.compared import EPSILONS, SMALLEST, best, best_and_worst, listed, wanted
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import MOMENTUM, OVERSHOOTING, RESTARTS, Dual
from nupi.paper.sparsity.runs import Trained, frame, train_all
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

LANDED = 0.3  # points: the paper's nuPI is no further from the boundary


@target(
    "sparsity-global",
    paper="Figures 8 and 16 to 19, tables 3 to 6: one constraint on the network",
    about="a ResNet-18 on CIFAR-10 with a density of at most 70, 50, 30, 10%, all methods",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_global(run: Run) -> list[Claim]:
    """Train the tables' methods under one constraint, and compare."""
    runs = wanted(run.scale, published.KP_GLOBAL, layerwise=False)
    if checked := dry_run(run, len(runs)):
        return checked
    trained = train_all(run, runs)
    run.results(frame(trained))
    run.figure(figures.tradeoff(trained))
    for epsilon in EPSILONS[run.scale]:
        run.table(
            f"Density at most {epsilon:.0%}", beside(by_method(trained, epsilon), published.GLOBAL[epsilon])
        )
    return score(run, global_claims(trained))


def global_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of its tables for one constraint, density by density."""
    claims = []
    for epsilon in dict.fromkeys(each.wanted.epsilon for each in trained):
        methods = by_method(trained, epsilon)
        violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
        accuracy = {dual: mean(seeds, lambda each: each.train) for dual, seeds in methods.items()}
        ours = Dual(kp=published.KP_GLOBAL[epsilon])
        gentle = replace(ours, init="bumpless")
        paper = {dual: row.violation for dual, row in published.GLOBAL[epsilon].items()}
        at = f"at {epsilon:.0%}: "
        if epsilon == SMALLEST:
            claims.append(
                Claim(
                    f"{at}positive momentum overshoots, negative does not",
                    listed(paper, MOMENTUM),
                    listed(violation, MOMENTUM),
                    violation[MOMENTUM[-1]] < -LANDED
                    and min(violation[each] for each in MOMENTUM[:-1]) > -LANDED,
                )
            )
        else:
            nearest, said = (min(abs(of[each]) for each in OVERSHOOTING) for of in (violation, paper))
            trains = {dual: row.train for dual, row in published.GLOBAL[epsilon].items()}
            claims += [
                Claim(
                    f"{at}gradient ascent and momentum overshoot by more than 5 points",
                    listed(paper, OVERSHOOTING),
                    listed(violation, OVERSHOOTING),
                    max(violation[each] for each in OVERSHOOTING) < -5,
                ),
                Claim(
                    f"{at}nuPI ends nearer to the boundary than gradient ascent and momentum",
                    f"{abs(paper[ours]):.1f} against at least {said:.1f} points",
                    f"{abs(violation[ours]):.1f} against at least {nearest:.1f}; "
                    f"bumpless {abs(violation[gentle]):.1f}",
                    abs(violation[ours]) < nearest,
                ),
                best(at, accuracy, trains, ours, gentle),
                Claim(
                    f"{at}all that overshoot train worse than nuPI and restarts",
                    best_and_worst(trains, ours),
                    best_and_worst(accuracy, ours),
                    max(accuracy[each] for each in OVERSHOOTING) < min(accuracy[ours], accuracy[RESTARTS]),
                ),
            ]
        reached = mean(methods[RESTARTS], lambda each: each.worst)
        claims += [
            Claim(
                f"{at}nuPI ends within {LANDED} points of the boundary",
                f"{paper[ours]:+.1f}",
                f"{violation[ours]:+.2f}; bumpless {violation[gentle]:+.2f}",
                abs(violation[ours]) <= LANDED,
            ),
            Claim(
                f"{at}dual restarts reach the density and end slightly infeasible",
                f"{paper[RESTARTS]:+.1f}",
                f"{violation[RESTARTS]:+.2f}, lowest {reached:+.2f}",
                reached <= 0 < violation[RESTARTS] < 3,
            ),
        ]
    return claims
