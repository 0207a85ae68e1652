"""The ablations of Adam's step size and of the momentum of Polyak and Nesterov."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nupi.paper.runner import Claim, Run, Scale, target
from nupi.paper.sparsity import figures, published
from nupi.paper.sparsity.dry_run import dry_run
from nupi.paper.sparsity.runs import Trained, Wanted, frame, train_all
from nupi.paper.sparsity.setting import SEEDS
from nupi.paper.sparsity.tables import beside, by_method, mean, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.published import Row

SMOKE_VALUES = 3
NEAR = 1.0  # points from the boundary
TURN = 2.0  # points: more than the noise of a run
OVERSHOT = 5.0  # points


def few(scale: Scale, rows: Mapping[Dual, Row]) -> dict[Dual, Row]:
    """All rows of a table, or a few of them where nothing is learnt anyway."""
    every = list(rows.items())
    return dict(every[:: len(every) // SMOKE_VALUES] if scale == "smoke" else every)


def densities(scale: Scale) -> tuple[float, ...]:
    """The targets of the ablations of kp and of Adam."""
    return (0.5,) if scale == "smoke" else (0.5, 0.3)


@target(
    "sparsity-adam",
    paper="Figure 23, tables 13 and 14: the step size of Adam",
    about="Adam on the multiplier with 8 step sizes at 50 and 30%",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_adam(run: Run) -> list[Claim]:
    """Train with every step size of Adam, and compare."""
    rows = {epsilon: few(run.scale, published.ADAM[epsilon]) for epsilon in densities(run.scale)}
    tables = {"Adam": rows}
    if checked := dry_run(run, len(_wanted(run, tables))):
        return checked
    trained = train_all(run, _wanted(run, tables))
    name = "Adam's step size"
    _show(run, trained, tables, lambda dual: dual.step, name=name, log=True)
    return score(run, adam_claims(trained))


def adam_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of Adam."""
    claims = []
    for epsilon in dict.fromkeys(each.wanted.epsilon for each in trained):
        paper = published.ADAM[epsilon]
        methods = by_method(trained, epsilon)
        violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
        accuracy = {dual: mean(seeds, lambda each: each.train) for dual, seeds in methods.items()}
        first, *_, last = methods
        near = [dual for dual in methods if abs(violation[dual]) <= NEAR]
        at = f"at {epsilon:.0%}: "
        claims += [
            Claim(
                f"{at}the smallest step size ends infeasible",
                f"{paper[first].violation:+.1f}",
                f"{violation[first]:+.1f}",
                violation[first] > 0,
            ),
            Claim(
                f"{at}with the step size the violation falls and rises again, by more than {TURN:g} points each",
                ", ".join(f"{row.violation:+.1f}" for dual, row in paper.items() if dual in violation),
                ", ".join(f"{found:+.1f}" for found in violation.values()),
                _falls_and_rises(list(violation.values()), TURN),
            ),
            Claim(
                f"{at}a range of step sizes lands: at least two end within {NEAR:g} point",
                ", ".join(f"{dual.step:g}" for dual, row in paper.items() if abs(row.violation) <= NEAR),
                ", ".join(f"{dual.step:g}" for dual in near) or "none",
                len(near) >= 2,
            ),
            Claim(
                f"{at}the largest step size costs accuracy",
                f"{paper[last].train:.1f}% against {paper[first].train:.1f}% at the smallest",
                f"{accuracy[last]:.1f}% against {accuracy[first]:.1f}%",
                accuracy[last] < accuracy[first] - 3,
            ),
        ]
    return claims


def _falls_and_rises(values: Sequence[float], by: float) -> bool:
    """Whether some value lies lower by so much than one before it and one after it."""
    return any(
        max(values[:i]) > values[i] + by and max(values[i + 1 :]) > values[i] + by
        for i in range(1, len(values) - 1)
    )


@target(
    "sparsity-momentum",
    paper="Figure 24, tables 15 and 16: momentum",
    about="Polyak and Nesterov with beta from -0.9 to 0.9 at 30%",
    scales=("smoke", "laptop", "desk", "paper"),
)
def sparsity_momentum(run: Run) -> list[Claim]:
    """Train with every momentum of both kinds, and compare."""
    tables = {
        "Polyak": {0.3: few(run.scale, published.POLYAK)},
        "Nesterov": {0.3: few(run.scale, published.NESTEROV)},
    }
    if checked := dry_run(run, len(_wanted(run, tables))):
        return checked
    trained = train_all(run, _wanted(run, tables))
    _show(run, trained, tables, lambda dual: dual.beta, name=r"Momentum $\beta$", log=False)
    return score(run, momentum_claims(trained))


def momentum_claims(trained: Sequence[Trained]) -> list[Claim]:
    """What the paper says of momentum."""
    methods = by_method(trained, 0.3)
    violation = {dual: mean(seeds, lambda each: each.violation) for dual, seeds in methods.items()}
    claims = []
    for title, rows in (("Polyak", published.POLYAK), ("Nesterov", published.NESTEROV)):
        ours = {dual: violation[dual] for dual in rows if dual in violation}
        largest = max(ours, key=lambda dual: dual.beta)
        said = [row.violation for row in rows.values()]
        claims += [
            Claim(
                f"{title}: every momentum overshoots by more than {OVERSHOT:g} points",
                f"{min(said):+.1f} to {max(said):+.1f}",
                ", ".join(f"{found:+.1f} at {dual.beta:g}" for dual, found in ours.items()),
                max(ours.values()) < -OVERSHOT,
            ),
            Claim(
                f"{title}: the largest momentum overshoots most",
                f"{rows[largest].violation:+.1f}",
                f"{ours[largest]:+.1f} against at most {min(ours.values()):+.1f}",
                ours[largest] == min(ours.values()),
            ),
        ]
    return claims


Tables: TypeAlias = "Mapping[str, Mapping[float, Mapping[Dual, Row]]]"  # by title and density


def _wanted(run: Run, tables: Tables) -> list[Wanted]:
    """The runs that the tables are made of; tables may share some."""
    every = [
        Wanted(dual, epsilon, seed)
        for seed in range(SEEDS[run.scale])
        for by_density in tables.values()
        for epsilon, rows in by_density.items()
        for dual in rows
    ]
    return list(dict.fromkeys(every))


def _show(
    run: Run,
    trained: Sequence[Trained],
    tables: Tables,
    gain: Callable[[Dual], float],
    *,
    name: str,
    log: bool,
) -> None:
    """Results, figure and tables of an ablation of one gain."""
    run.results(frame(trained))
    epsilons = list(next(iter(tables.values())))
    run.figure(
        figures.ablation(
            trained,
            {
                title: {each: {gain(dual): dual for dual in rows} for each, rows in by_density.items()}
                for title, by_density in tables.items()
            },
            {
                each: {
                    title: {gain(dual): row for dual, row in by_density[each].items()}
                    for title, by_density in tables.items()
                }
                for each in epsilons
            },
            name=name,
            linear_below=1e-6 if log else None,
            colours={"Adam": "adam", "Polyak": "polyak", "Nesterov": "nesterov"},
        )
    )
    for epsilon in epsilons:
        methods = by_method(trained, epsilon)
        for title, by_density in tables.items():
            chosen = {dual: methods[dual] for dual in by_density[epsilon]}
            run.table(f"{title} at {epsilon:.0%}", beside(chosen, by_density[epsilon]))
