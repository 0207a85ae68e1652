"""What the ablations of one gain share: which runs they are made of, and how they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nupi.paper.sparsity import figures
from nupi.paper.sparsity.runs import Trained, Wanted, frame
from nupi.paper.sparsity.scales import SEEDS
from nupi.paper.sparsity.tables import beside, by_method

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nupi.paper.runner import Scale, TargetRun
    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.published import Row

SMOKE_VALUES = 3
ABLATION_SEEDS: dict[Scale, int] = {**SEEDS, "laptop": 1}
"""One at laptop scale, where there are many settings; the three of `sparsity-kp` tell how far seeds are apart."""
Tables: TypeAlias = "Mapping[str, Mapping[float, Mapping[Dual, Row]]]"  # by title and density


def few(scale: Scale, rows: Mapping[Dual, Row]) -> dict[Dual, Row]:
    """All rows of a table, or a few of them where nothing is learnt anyway."""
    every = list(rows.items())
    return dict(every[:: len(every) // SMOKE_VALUES] if scale == "smoke" else every)


def densities(scale: Scale) -> tuple[float, ...]:
    """The targets of the ablation of Adam, and of that of kp but for desk scale."""
    return (0.5,) if scale == "smoke" else (0.5, 0.3)


def wanted(run: TargetRun, tables: Tables) -> list[Wanted]:
    """The runs that the tables are made of; tables may share some."""
    every = [
        Wanted(dual, epsilon, seed)
        for seed in range(ABLATION_SEEDS[run.scale])
        for by_density in tables.values()
        for epsilon, rows in by_density.items()
        for dual in rows
    ]
    return list(dict.fromkeys(every))


def show(
    run: TargetRun,
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
