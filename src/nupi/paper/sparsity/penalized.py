"""Target `sparsity-penalized`: what nuPI's last multiplier is worth as a fixed penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, Scale, TargetRun, target
from nupi.paper.sparsity import figures
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import Dual
from nupi.paper.sparsity.published import AT_30
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS, SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Sequence

EPSILON = 0.3
PENALTY_KPS = (16.0, 20.0)
ZERO = Dual("penalty", multiplier=0.0)
DIGITS = 4  # of a multiplier that becomes a penalty: more would say nothing


@target(
    "sparsity-penalized",
    paper="Figure 21: the final multiplier as a fixed penalty",
    about="train with nuPI's last multiplier fixed, and with multiplier 0: what density comes out?",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_penalized(run: TargetRun) -> list[Claim]:
    """Train nuPI, then without a dual player at the multiplier it ended with; and at 0."""
    seeds = range(SEEDS[run.scale])
    sources = [
        Wanted(Dual(kp=kp, init=init), EPSILON, seed)
        for seed in seeds
        for init in (("bumpless", "zero") if seed == 0 else ("bumpless",))  # "zero" is for comparison
        for kp in _penalty_kps(run.scale)
    ]
    if dry_run(run, 2 * len(sources) + len(seeds)):
        return []
    first = train_all(run, sources)
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
