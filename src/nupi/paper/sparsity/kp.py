"""Target `sparsity-kp`: the ablation of nuPI's kp, and for comparison the same from the start "zero"."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.ablation import densities, few
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.scales import OPTIONS, SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nupi.paper.runner import Scale
    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.published import Row

NOISE = 0.5  # points by which a larger kp may end lower all the same; the paper's tables have 0.3
NEAR = 1.0  # points from the boundary
DESK_KPS = (0.0, 0.8, 4.0, 9.6, 14.4, 24.0)  # a run takes minutes there, so one density and no second start
DESK_DENSITY = 0.3


@target(
    "sparsity-kp",
    paper="Figures 9 and 22, tables 11 and 12: the ablation of kp",
    about="12 values of kp at 50 and 30% (desk: 6 at 30%); one seed of the same from the start that has a kick",
    scales=("smoke", "laptop", "desk", "paper"),
    options=OPTIONS,
)
def sparsity_kp(run: TargetRun) -> list[Claim]:
    """Train nuPI with every kp from two starts, and compare."""
    epsilons = (DESK_DENSITY,) if run.scale == "desk" else densities(run.scale)
    rows = {epsilon: _rows(run.scale, epsilon) for epsilon in epsilons}
    kicked = {dual: replace(dual, init="zero") if dual.kp else dual for each in rows for dual in rows[each]}
    seeds = range(SEEDS[run.scale])
    wanted = [Wanted(dual, each, seed) for seed in seeds for each in rows for dual in rows[each]]
    if run.scale != "desk":
        wanted += [Wanted(kicked[dual], each, 0) for each in rows for dual in rows[each]]
    if dry_run(run, len(set(wanted))):
        return []
    trained = train_all(run, wanted)
    run.results(frame(trained))
    series = {"nuPI": {each: {dual.kp: dual for dual in rows[each]} for each in rows}}
    if run.scale != "desk":
        series["nuPI from zero"] = {each: {dual.kp: kicked[dual] for dual in rows[each]} for each in rows}
    run.figure(
        figures.ablation(
            trained,
            series,
            {each: {"nuPI": {dual.kp: row for dual, row in rows[each].items()}} for each in rows},
            name=r"$k_p$",
            linear_below=0.8,
            colours={"nuPI": "nupi", "nuPI from zero": "nupi"},
        )
    )
    for epsilon in rows:
        run.table(f"kp at {epsilon:.0%}", beside(by_method(trained, epsilon), published.KP[epsilon]))
    return score(run, kp_claims(trained, {"nuPI": series["nuPI"]}))


def _rows(scale: Scale, epsilon: float) -> dict[Dual, Row]:
    """The paper's table, or the part of it that a scale can afford."""
    if scale == "desk":
        return {dual: row for dual, row in published.KP[epsilon].items() if dual.kp in DESK_KPS}
    return few(scale, published.KP[epsilon])


def kp_claims(
    trained: Sequence[Trained], series: Mapping[str, Mapping[float, Mapping[float, Dual]]]
) -> list[Claim]:
    """What the paper says of kp, for both starts.

    The distance to the paper's own table is given and not judged: its network, data and steps are others.
    """
    claims = []
    for title, by_density in series.items():
        for epsilon, by_kp in by_density.items():
            methods = by_method(trained, epsilon)
            kps = sorted(by_kp)
            violation = [mean(methods[by_kp[kp]], lambda each: each.violation) for kp in kps]
            accuracy = [mean(methods[by_kp[kp]], lambda each: each.train) for kp in kps]
            paper = {dual.kp: row for dual, row in published.KP[epsilon].items()}
            near, said_near = (
                [kp for kp, found in zip(kps, of, strict=True) if abs(found) <= NEAR]
                for of in (violation, [paper[kp].violation for kp in kps])
            )
            apart = torch.tensor([paper[kp].violation for kp in kps]) - torch.tensor(violation)
            listed = ", ".join(f"{found:+.1f} at {kp:g}" for kp, found in zip(kps, violation, strict=True))
            said = ", ".join(f"{paper[kp].violation:+.1f} at {kp:g}" for kp in kps)
            at = f"{title}, at {epsilon:.0%}: "
            claims += [
                Claim(
                    f"{at}the larger kp, the denser the network (to half a point)",
                    said,
                    f"{listed}; root mean square distance to the paper's {apart.square().mean().sqrt():.1f}",
                    all(later > earlier - NOISE for earlier, later in pairwise(violation))
                    and violation[-1] > violation[0] + 5,
                ),
                Claim(
                    f"{at}a range of kp lands: at least two values end within {NEAR:g} point",
                    ", ".join(f"{kp:g}" for kp in said_near),
                    ", ".join(f"{kp:g}" for kp in near) or "none",
                    len(near) >= 2,
                ),
                Claim(
                    f"{at}the largest kp ends infeasible",
                    f"{paper[kps[-1]].violation:+.1f}",
                    f"{violation[-1]:+.1f}",
                    violation[-1] > 0,
                ),
                Claim(
                    f"{at}the denser network trains better (rank correlation of density and accuracy)",
                    f"strong: {_ranked([paper[kp].violation for kp in kps], [paper[kp].train for kp in kps]):.2f}",
                    f"{_ranked(violation, accuracy):.2f}",
                    _ranked(violation, accuracy) > 0.7,
                ),
            ]
    return claims


def _ranked(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one of them is constant."""
    from scipy.stats import spearmanr

    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    return float(spearmanr(one, other).statistic)
