"""The tables of the sparsity experiment: one constraint on the network, or one for each of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, Run, Scale, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, MOMENTUM, OVERSHOOTING, RESTARTS, Dual, of_the_tables
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.setting import SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EPSILONS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.5,),
    "laptop": published.EPSILONS,
    "desk": (0.5, 0.3),
    "paper": published.EPSILONS,
}
LANDED = 0.3  # points: the paper's nuPI is no further from the boundary
DEEPEST, HIGHEST = 2.0, 1.0  # points: within these the paper's nuPI ends in every layer
SMALLEST = 0.1  # of this density the paper says less


def wanted(scale: Scale, kps: Mapping[float, float], *, layerwise: bool) -> list[Wanted]:
    """The methods of the tables, and the paper's nuPI from the start that has no kick."""
    return [
        Wanted(dual, epsilon, seed, layerwise=layerwise)
        for seed in range(SEEDS[scale])
        for epsilon in EPSILONS[scale]
        for dual in (*of_the_tables(kps[epsilon]), Dual(kp=kps[epsilon], init="bumpless"))
    ]


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
                    _listed(paper, MOMENTUM),
                    _listed(violation, MOMENTUM),
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
                    _listed(paper, OVERSHOOTING),
                    _listed(violation, OVERSHOOTING),
                    max(violation[each] for each in OVERSHOOTING) < -5,
                ),
                Claim(
                    f"{at}nuPI ends nearer to the boundary than gradient ascent and momentum",
                    f"{abs(paper[ours]):.1f} against at least {said:.1f} points",
                    f"{abs(violation[ours]):.1f} against at least {nearest:.1f}; "
                    f"bumpless {abs(violation[gentle]):.1f}",
                    abs(violation[ours]) < nearest,
                ),
                _best(at, accuracy, trains, ours, gentle),
                Claim(
                    f"{at}all that overshoot train worse than nuPI and restarts",
                    _best_and_worst(trains, ours),
                    _best_and_worst(accuracy, ours),
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


@target(
    "sparsity-layerwise",
    paper="Tables 1 and 7 to 10: one constraint a layer",
    about="the same with each of 8 layers constrained: smallest, largest and range of the violations",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_layerwise(run: Run) -> list[Claim]:
    """Train the tables' methods with a constraint for each layer, and compare."""
    runs = wanted(run.scale, published.KP_LAYERWISE, layerwise=True)
    if checked := dry_run(run, len(runs)):
        return checked
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
        accuracy = {dual: mean(seeds, lambda each: each.train) for dual, seeds in methods.items()}
        paper = published.LAYERWISE[epsilon]
        said = {dual: row.spread for dual, row in paper.items()}
        ours = Dual(kp=published.KP_LAYERWISE[epsilon])
        gentle = replace(ours, init="bumpless")
        narrowest, narrowest_said = (min(of[each] for each in OVERSHOOTING) for of in (spread, said))
        at = f"at {epsilon:.0%}: "
        claims += [
            Claim(
                f"{at}gradient ascent and momentum overshoot in every layer",
                "largest " + _listed({dual: row.highest for dual, row in paper.items()}, OVERSHOOTING),
                "largest " + _listed(highest, OVERSHOOTING),
                max(highest[each] for each in OVERSHOOTING) < -1,
            ),
            Claim(
                f"{at}the violations of nuPI span a smaller range than those of gradient ascent and momentum",
                f"{said[ours]:.1f} against at least {narrowest_said:.1f}",
                f"{spread[ours]:.1f} against at least {narrowest:.1f}; bumpless {spread[gentle]:.1f}",
                spread[ours] < narrowest,
            ),
            Claim(
                f"{at}and so do those of dual restarts",
                f"{said[RESTARTS]:.1f} against at least {narrowest_said:.1f}",
                f"{spread[RESTARTS]:.1f} against at least {narrowest:.1f}",
                spread[RESTARTS] < narrowest,
            ),
            Claim(
                f"{at}nuPI ends between {-DEEPEST:g} and {HIGHEST:g} points in all layers",
                f"{paper[ours].lowest:+.1f} to {paper[ours].highest:+.1f}",
                f"{lowest[ours]:+.1f} to {highest[ours]:+.1f}; "
                f"bumpless {lowest[gentle]:+.1f} to {highest[gentle]:+.1f}",
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
                _best(at, accuracy, trains, ours, gentle),
            ]
    return claims


def _best(
    at: str, accuracy: Mapping[Dual, float], paper: Mapping[Dual, float], ours: Dual, gentle: Dual
) -> Claim:
    """Whether nuPI trains best of the tables' methods; the paper's own numbers may say no."""
    others = [dual for dual in paper if dual != ours]
    best = max(others, key=lambda dual: accuracy[dual])
    paper_best = max(others, key=lambda dual: paper[dual])
    return Claim(
        f"{at}nuPI has the highest training accuracy",
        f"{paper[ours]:.1f}% against {paper[paper_best]:.1f}% ({paper_best.label})",
        f"{accuracy[ours]:.1f}% against {accuracy[best]:.1f}% ({best.label}); bumpless {accuracy[gentle]:.1f}%",
        accuracy[ours] > accuracy[best],
    )


def _best_and_worst(accuracy: Mapping[Dual, float], ours: Dual) -> str:
    overshooting = max(accuracy[each] for each in OVERSHOOTING)
    return f"at most {overshooting:.1f}% against {min(accuracy[ours], accuracy[RESTARTS]):.1f}%"


def _listed(violation: Mapping[Dual, float], duals: Iterable[Dual]) -> str:
    return (
        ", ".join(f"{violation[each]:+.1f}" for each in duals)
        + " ("
        + ", ".join("GA" if each == GA else f"{each.beta:g}" for each in duals)
        + ")"
    )
