"""Target `sparsity-starts`, beyond the paper: which start of nuPI lands on the constraint and keeps the accuracy?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nupi import rule
from nupi.paper.runner import Claim, Scale, TargetRun, target
from nupi.paper.sparsity import figures
from nupi.paper.sparsity.bisection import EPSILON, MOST_RUNS, TUNED_ON, bisection
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, RESTARTS, Dual
from nupi.paper.sparsity.published import AT_30, KP_GLOBAL
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KP = KP_GLOBAL[EPSILON]
RAMP = 0.2  # of the run
START_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "desk": 1, "paper": 5}
NEAR = 1.0  # points from the boundary that count as landed


def variants(kp: float) -> list[Dual]:
    """Every start and form, and a ramp for the two forms that it tells apart.

    At nu = 0 the starts "error" and "ema" are one controller, so one is run.
    """
    return [
        Dual(kp=kp, init=init, form=form, ramp=ramp)
        for ramp, forms in ((0.0, rule.FORMS), (RAMP, ("velocity", "positional")))
        for form in forms
        for init in rule.INITS
        if init != "ema"
    ]


@target(
    "sparsity-starts",
    paper="(not in the paper)",
    about="the starts, the forms and a ramp of the gains: does a nuPI land and keep the accuracy of restarts?",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_starts(run: TargetRun) -> list[Claim]:
    """Train every variant of nuPI at the paper's kp, and the bumpless ones at a kp found by bisection."""
    seeds, duals = range(START_SEEDS[run.scale]), [GA, RESTARTS, *variants(KP)]
    if dry_run(run, len(seeds) * (len(duals) + 2) + MOST_RUNS):
        return []
    search, searched = bisection(run, "bumpless")
    tuned = Dual(kp=search.kp, init="bumpless") if search.status == "converged" else None
    if tuned is not None:
        duals += [tuned, replace(tuned, form="positional")]
    trained = train_all(run, [Wanted(dual, EPSILON, seed) for seed in seeds for dual in duals])
    made = {each.wanted: each for each in (*trained, *searched)}
    run.results(frame(made.values()))
    run.figure(figures.variants(trained))
    run.table(
        f'Density at most 30%, {len(seeds)} seed{"s" * (len(seeds) > 1)} (at nu = 0 the start "ema" is "error")',
        beside(by_method(trained, EPSILON), AT_30),
    )
    return score(run, starts_claims(trained, tuned))


def starts_claims(trained: Sequence[Trained], tuned: Dual | None) -> list[Claim]:
    """The question that was open: lands, and trains as well as restarts?

    The variants have the paper's kp and are judged on all seeds. The kp of `tuned` was found on the first seed, so it
    is judged on the others, where there are others; it is None if the search found none.
    """
    every = by_method(trained, EPSILON)
    unseen = by_method([each for each in trained if each.wanted.seed != TUNED_ON] or trained, EPSILON)

    def lands_and_trains(dual: Dual, methods: Mapping[Dual, Sequence[Trained]]) -> bool:
        as_well = mean(methods[dual], _accuracy) >= mean(methods[RESTARTS], _accuracy)
        return as_well and mean(methods[dual], _distance) <= NEAR

    good = [dual for dual in every if dual.kp == KP and lands_and_trains(dual, every)]
    return [
        Claim(
            f"some nuPI with the paper's kp = {KP:g} ends within {NEAR:g} point and trains as well as restarts",
            "yes, from its own start",
            "; ".join(_named(dual, every) for dual in good) or "none",
            bool(good),
        ),
        Claim(
            f"with kp by bisection on one seed, nuPI from the bumpless start ends within {NEAR:g} point "
            "and trains as well as restarts on the others",
            "(not in the paper)",
            f"{_named(tuned, unseen)}; {_named(RESTARTS, unseen)}" if tuned else "bisection found no kp",
            tuned is not None and lands_and_trains(tuned, unseen),
        ),
    ]


def _accuracy(trained: Trained) -> float:
    return trained.train


def _distance(trained: Trained) -> float:
    return abs(trained.violation)


def _named(dual: Dual, methods: Mapping[Dual, Sequence[Trained]]) -> str:
    distance, accuracy = mean(methods[dual], _distance), mean(methods[dual], _accuracy)
    return f"{dual.label}: {distance:.2f} points off, {accuracy:.1f}%"
