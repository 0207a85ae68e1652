"""What happens during training: violation and multiplier over the steps; and what the last multiplier is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, Run, Scale, target
from nupi.paper.sparsity import figures
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, RESTARTS, Dual
from nupi.paper.sparsity.published import AT_30, KP_GLOBAL
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.setting import SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPSILON = 0.3
NUPI = Dual(kp=KP_GLOBAL[EPSILON])
GENTLE = replace(NUPI, init="bumpless")
POLYAK, ADAM = Dual("polyak", beta=0.3), Dual("adam")
PENALTY_KPS = (16.0, 20.0)
ZERO = Dual("penalty", multiplier=0.0)
DIGITS = 4  # of a multiplier that becomes a penalty: more would say nothing


@target(
    "sparsity-dynamics",
    paper="Figures 2 and 20: violation and multiplier over training",
    about="GA, Polyak, Adam, dual restarts and nuPI under a density of 30%, step by step",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_dynamics(run: Run) -> list[Claim]:
    """Train five methods and draw what their violations and multipliers did."""
    wanted = [
        Wanted(dual, EPSILON, seed)
        for seed in range(SEEDS[run.scale])
        for dual in (GA, POLYAK, ADAM, RESTARTS, NUPI, GENTLE)
    ]
    if checked := dry_run(run, len(wanted)):
        return checked
    trained = train_all(run, wanted)
    run.results(frame(trained))
    run.figure(figures.dynamics([each for each in trained if each.wanted.seed == 0]))
    run.table("Under a density of 30%", beside(by_method(trained, EPSILON), AT_30))
    return score(run, dynamics_claims(trained))


def dynamics_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper sees in its figures of the dynamics."""
    methods = by_method(trained, EPSILON)
    worst = {dual: mean(seeds, lambda each: each.worst) for dual, seeds in methods.items()}
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
            max(worst[dual] for dual in dipped) < -5,
        ),
        Claim(
            "and come back towards the boundary later, by more than a point each, Adam by the most",
            "reverse the initial overshoot, Adam most",
            ", ".join(f"{dual.label} from {worst[dual]:+.1f} to {final[dual]:+.1f}" for dual in dipped),
            min(back.values()) > 1 and max(back, key=lambda dual: back[dual]) == ADAM,
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
            f"{worst[NUPI]:+.1f} at worst; bumpless {worst[GENTLE]:+.1f}",
            worst[NUPI] > -2,
        ),
        Claim(
            "nuPI's last multiplier is above 0, ten times any other's",
            "non-zero, the others zero",
            _listed(multiplier, (*dipped, RESTARTS, NUPI, GENTLE), digits=3),
            multiplier[NUPI] > 10 * others,
        ),
    ]


@target(
    "sparsity-penalized",
    paper="Figure 21: the final multiplier as a fixed penalty",
    about="train with nuPI's last multiplier fixed, and with multiplier 0: what density comes out?",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_penalized(run: Run) -> list[Claim]:
    """Train nuPI, then without a dual player at the multiplier it ended with; and at 0."""
    sources = [Dual(kp=kp, init=init) for init in ("zero", "bumpless") for kp in _penalty_kps(run.scale)]
    if checked := dry_run(run, SEEDS[run.scale] * (2 * len(sources) + 1)):
        return checked
    seeds = range(SEEDS[run.scale])
    first = train_all(run, [Wanted(dual, EPSILON, seed) for seed in seeds for dual in sources])
    penalties = {each.wanted: Dual("penalty", multiplier=_rounded(each)) for each in first}
    second = train_all(
        run,
        [Wanted(dual, EPSILON, wanted.seed) for wanted, dual in penalties.items()]
        + [Wanted(ZERO, EPSILON, seed) for seed in seeds],
    )
    by_penalty = {each.wanted: each for each in second}
    pairs = [(each, by_penalty[Wanted(penalties[each.wanted], EPSILON, each.wanted.seed)]) for each in first]
    free = [by_penalty[Wanted(ZERO, EPSILON, seed)] for seed in seeds]
    run.results(frame([*first, *second]))
    run.figure(figures.dynamics([each for each in second if each.wanted.seed == 0]))
    run.table("Under a density of 30%", beside(by_method([*first, *second], EPSILON), AT_30))
    return score(run, penalized_claims(pairs, free))


def penalized_claims(pairs: Sequence[tuple[Trained, Trained]], free: Sequence[Trained]) -> list[Claim]:
    """What the paper says of multipliers as penalties: pairs of a run and the penalized one after it."""
    open_share = mean(free, lambda each: each.violation) + 100 * EPSILON
    claims = [
        Claim(
            "multiplier 0 leaves the network dense",
            "100%",
            f"{open_share:.1f}%",
            open_share > 95,
        )
    ]
    for dual in dict.fromkeys(each.wanted.dual for each, _ in pairs):
        of_dual = [(source, fixed) for source, fixed in pairs if source.wanted.dual == dual]
        source = mean([one for one, _ in of_dual], lambda each: each.violation)
        fixed = mean([other for _, other in of_dual], lambda each: each.violation)
        multiplier = mean([one for one, _ in of_dual], lambda each: each.multiplier.item())
        claims.append(
            Claim(
                f"the last multiplier of {dual.label}, fixed, ends within 3 points of the density",
                "very close to it",
                f"{fixed:+.1f} with {multiplier:.3g}; the run it is from ended at {source:+.1f}",
                abs(fixed) < 3,
            )
        )
    return claims


def _penalty_kps(scale: Scale) -> tuple[float, ...]:
    return PENALTY_KPS[:1] if scale == "smoke" else PENALTY_KPS


def _rounded(trained: Trained) -> float:
    return float(f"{trained.multiplier.item():.{DIGITS}g}")


def _listed(found: Mapping[Dual, float], duals: Sequence[Dual], digits: int = 1) -> str:
    return ", ".join(f"{dual.label} {found[dual]:.{digits}f}" for dual in duals)
