"""What the two targets of the paper's tables share: which runs they compare, and how a claim says what they found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from nupi.paper.runner import Claim, Scale
from nupi.paper.sparsity import published
from nupi.paper.sparsity.methods import GA, OVERSHOOTING, RESTARTS, Dual, of_the_tables
from nupi.paper.sparsity.runs import Trained, Wanted
from nupi.paper.sparsity.scales import SEEDS
from nupi.paper.sparsity.tables import exceeds, mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Methods: TypeAlias = "Mapping[Dual, Sequence[Trained]]"

EPSILONS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.5,),
    "laptop": published.EPSILONS,
    "desk": (0.5, 0.3),
    "paper": published.EPSILONS,
}
SMALLEST = 0.1  # of this density the paper says less


def wanted(scale: Scale, kps: Mapping[float, float], *, layerwise: bool) -> list[Wanted]:
    """The methods of the tables, and for comparison nuPI from the start "zero", which has a kick."""
    return [
        Wanted(dual, epsilon, seed, layerwise=layerwise)
        for seed in range(SEEDS[scale])
        for epsilon in EPSILONS[scale]
        for dual in (*of_the_tables(kps[epsilon]), Dual(kp=kps[epsilon], init="zero"))
    ]


def trains_best(at: str, methods: Methods, paper: Mapping[Dual, float], ours: Dual) -> Claim:
    """Whether nuPI trains better than each other method of the tables, by more than the seeds' spread."""
    accuracy = {dual: mean(seeds, train_accuracy) for dual, seeds in methods.items()}
    others = [dual for dual in paper if dual != ours]
    best = max(others, key=lambda dual: accuracy[dual])
    paper_best = max(others, key=lambda dual: paper[dual])
    kicked = replace(ours, init="zero")
    return Claim(
        f"{at}nuPI has the highest training accuracy, by more than the seeds' spread",
        f"{paper[ours]:.1f}% against {paper[paper_best]:.1f}% ({paper_best.label})",
        f"{accuracy[ours]:.1f}% against {accuracy[best]:.1f}% ({best.label}); from zero {accuracy[kicked]:.1f}%",
        all(exceeds(methods[ours], methods[each], train_accuracy) for each in others),
    )


def train_accuracy(trained: Trained) -> float:
    """In percent."""
    return trained.train


def distance(trained: Trained) -> float:
    """Points between the density and its bound, on either side."""
    return abs(trained.violation)


def best_and_worst(accuracy: Mapping[Dual, float], ours: Dual) -> str:
    """The best accuracy of those that overshoot, against the worse of nuPI and restarts."""
    overshooting = max(accuracy[each] for each in OVERSHOOTING)
    return f"at most {overshooting:.1f}% against {min(accuracy[ours], accuracy[RESTARTS]):.1f}%"


def listed(violation: Mapping[Dual, float], duals: Iterable[Dual]) -> str:
    """Their violations, and behind them in brackets whose they are."""
    return (
        ", ".join(f"{violation[each]:+.1f}" for each in duals)
        + " ("
        + ", ".join("GA" if each == GA else f"{each.beta:g}" for each in duals)
        + ")"
    )
