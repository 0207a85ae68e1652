"""Target `sparsity-dynamics`: violation and multiplier over the steps of training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi.monitor.replay import Played
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity import figures
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, RESTARTS, Dual
from nupi.paper.sparsity.published import AT_30, KP_GLOBAL
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS, SEEDS
from nupi.paper.sparsity.tables import below, beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPSILON = 0.3
NUPI = Dual(kp=KP_GLOBAL[EPSILON])
KICKED = replace(NUPI, init="zero")
POLYAK, ADAM = Dual("polyak", beta=0.3), Dual("adam")


@target(
    "sparsity-dynamics",
    paper="Figures 2 and 20: violation and multiplier over training",
    about="GA, Polyak, Adam, dual restarts and nuPI under a density of 30%, step by step",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_dynamics(run: TargetRun) -> list[Claim]:
    """Train five methods and draw what their violations and multipliers did."""
    wanted = [
        Wanted(dual, EPSILON, seed)
        for seed in range(SEEDS[run.scale])
        for dual in (GA, POLYAK, ADAM, RESTARTS, NUPI, KICKED)
    ]
    if dry_run(run, len(wanted)):
        return []
    trained = train_all(run, wanted)
    run.results(frame(trained))
    first = [each for each in trained if each.wanted.seed == 0]
    run.figure(figures.dynamics(first))
    run.report({each.wanted.dual.label: _played(each) for each in first}, first[0].value["step"].tolist())
    run.table("Under a density of 30%", beside(by_method(trained, EPSILON), AT_30))
    return score(run, dynamics_claims(trained))


def _played(trained: Trained) -> Played:
    """A run for the report: densities as shares, as the multipliers saw them."""
    return Played(trained.value["violations"], trained.value["multipliers"], dual=trained.wanted.dual.label)


def dynamics_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper sees in its figures of the dynamics."""
    methods = by_method(trained, EPSILON)
    worst = {dual: mean(seeds, _worst) for dual, seeds in methods.items()}
    final = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
    multiplier = {dual: mean(seeds, lambda each: each.multiplier.item()) for dual, seeds in methods.items()}
    dipped = (GA, POLYAK, ADAM)
    back = {dual: final[dual] - worst[dual] for dual in dipped}
    others = max(multiplier[dual] for dual in (*dipped, RESTARTS))
    return [
        Claim(
            "GA, Polyak and Adam overshoot by more than 5 points on the way",
            "quickly overshoot",
            _listed(worst, dipped),
            all(below(methods[dual], _worst, -5.0) for dual in dipped),
        ),
        Claim(
            "and come back towards the boundary later, by more than a point each, Adam by the most",
            "reverse the initial overshoot, Adam most",
            ", ".join(f"{dual.label} from {worst[dual]:+.1f} to {final[dual]:+.1f}" for dual in dipped),
            all(below(methods[dual], _comeback, -1.0) for dual in dipped)
            and max(back, key=lambda dual: back[dual]) == ADAM,
        ),
        Claim(
            "dual restarts never go more than 2 points into the feasible set",
            "no incursion",
            f"{worst[RESTARTS]:+.1f} at worst",
            worst[RESTARTS] > -2,
        ),
        Claim(
            "nuPI never goes more than 2 points into the feasible set",
            "avoids overshoot",
            f"{worst[NUPI]:+.1f} at worst, and {final[NUPI]:+.1f} at the end; from zero {worst[KICKED]:+.1f} at worst",
            worst[NUPI] > -2,
        ),
        Claim(
            "nuPI's last multiplier is above 0, ten times any other's",
            "non-zero, the others zero",
            _listed(multiplier, (*dipped, RESTARTS, NUPI, KICKED), digits=3),
            multiplier[NUPI] > 10 * others,
        ),
    ]


def _worst(trained: Trained) -> float:
    return trained.worst


def _comeback(trained: Trained) -> float:
    """How far a run came back from its lowest violation, as a negative number."""
    return trained.worst - trained.violation


def _listed(found: Mapping[Dual, float], duals: Sequence[Dual], digits: int = 1) -> str:
    return ", ".join(f"{dual.label} {found[dual]:.{digits}f}" for dual in duals)
