"""Targets `self-tuned-sparsity` and `self-tuned-layerwise`: the paper's sparsity experiment without gains of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.paper.runner import Claim, Scale, TargetRun, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.compared import train_accuracy
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.methods import GA, RESTARTS, SELF_TUNED, Dual
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS, SEEDS
from nupi.paper.sparsity.tables import beside, by_method, exceeds, mean, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPSILONS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.5,),
    "laptop": (0.7, 0.5, 0.3),
    "desk": (0.5, 0.3),
    "paper": (0.7, 0.5, 0.3),
}
NEAR = 0.6  # points from the bound


@target(
    "self-tuned-sparsity",
    paper="not in the paper",
    about="gains that find themselves on CIFAR-10 at 70, 50 and 30% density, beside the methods of the tables",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def self_tuned_sparsity(run: TargetRun) -> list[Claim]:
    """One constraint on the whole network: SelfTuned, gradient ascent, restarts and the paper's nuPI."""
    return _compare(run, published.KP_GLOBAL, layerwise=False)


@target(
    "self-tuned-layerwise",
    paper="not in the paper",
    about="the same with a constraint for each of the eight gated layers",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def self_tuned_layerwise(run: TargetRun) -> list[Claim]:
    """A constraint for each layer: SelfTuned, gradient ascent, restarts and the paper's nuPI."""
    return _compare(run, published.KP_LAYERWISE, layerwise=True)


def _compare(run: TargetRun, kps: Mapping[float, float], *, layerwise: bool) -> list[Claim]:
    """Train the four methods, and compare where they end."""
    wanted = [
        Wanted(dual, epsilon, seed, layerwise=layerwise)
        for seed in range(SEEDS[run.scale])
        for epsilon in EPSILONS[run.scale]
        for dual in (SELF_TUNED, GA, RESTARTS, Dual(kp=kps[epsilon]))
    ]
    if dry_run(run, len(wanted)):
        return []
    trained = train_all(run, wanted)
    run.results(frame(trained))
    run.figure((figures.layers if layerwise else figures.tradeoff)(trained))
    whose = "Density of each layer" if layerwise else "Density"
    for epsilon in EPSILONS[run.scale]:
        run.table(f"{whose} at most {epsilon:.0%}", beside(by_method(trained, epsilon), {}))
    return score(run, claims(trained))


def claims(trained: Sequence[Trained]) -> list[Claim]:
    """On the bound, and as accurate as the best of the others that end within a point of it.

    With a constraint for each layer the densest layer counts: one that its multiplier has let go may be sparser.
    """
    found = []
    for epsilon in dict.fromkeys(each.wanted.epsilon for each in trained):
        methods = by_method(trained, epsilon)
        violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
        accuracy = {dual: mean(seeds, train_accuracy) for dual, seeds in methods.items()}
        others = [dual for dual in methods if dual != SELF_TUNED]
        # A denser network is more accurate, so only those near the bound can be compared.
        near = [dual for dual in others if violation[dual] <= 1.0] or others
        best = max(near, key=lambda dual: accuracy[dual])
        at = f"at {epsilon:.0%}: "
        found += [
            Claim(
                f"{at}SelfTuned ends within {NEAR:g} points of the bound",
                "goal",
                ", ".join(f"{dual.label} {value:+.1f}" for dual, value in violation.items()),
                abs(violation[SELF_TUNED]) <= NEAR,
            ),
            Claim(
                f"{at}no other method that ends at most a point too dense is more accurate, beyond the seeds' spread",
                "goal",
                f"{accuracy[SELF_TUNED]:.1f}% against {accuracy[best]:.1f}% ({best.label})",
                not exceeds(methods[best], methods[SELF_TUNED], train_accuracy),
            ),
        ]
    return found
