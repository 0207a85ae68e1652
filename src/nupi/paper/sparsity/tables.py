"""What came out beside the paper's numbers, and the paper's claims scale by scale."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from nupi import files
from nupi.paper.numbers import clearly_above, spread
from nupi.paper.runner import SCALES, Claim, TargetRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.published import LayerRow, Row
    from nupi.paper.sparsity.runs import Trained

BY_SCALE = "scores.json"
CRITERIA = (
    3  # change it when a claim is judged otherwise: verdicts that were kept under another one are dropped
)


def by_method(trained: Iterable[Trained], epsilon: float) -> dict[Dual, list[Trained]]:
    """The runs at one target density, the seeds of a method together."""
    found: dict[Dual, list[Trained]] = {}
    for each in trained:
        if each.wanted.epsilon == epsilon:
            found.setdefault(each.wanted.dual, []).append(each)
    return found


def mean(seeds: Sequence[Trained], of: Callable[[Trained], float]) -> float:
    """Over the seeds of a method."""
    return sum(map(of, seeds)) / len(seeds)


def exceeds(
    one: Sequence[Trained], other: Sequence[Trained], of: Callable[[Trained], float], by: float = 0.0
) -> bool:
    """Whether a number is larger in one method than in another, by more than `by` and more than the seeds' spread.

    The runs of a seed share their checkpoint, so they are compared seed by seed.
    """
    others = {each.wanted.seed: of(each) for each in other}
    return clearly_above(torch.tensor([of(each) - others[each.wanted.seed] for each in one]), by)


def below(seeds: Sequence[Trained], of: Callable[[Trained], float], bound: float) -> bool:
    """Whether a number lies below a bound by more than the seeds' spread."""
    return clearly_above(torch.tensor([-of(each) for each in seeds]), -bound)


def beside(
    methods: Mapping[Dual, Sequence[Trained]], published: Mapping[Dual, Row | LayerRow]
) -> pd.DataFrame:
    """A row a method, mean and deviation over the seeds; the paper's numbers in brackets where it has them."""
    return pd.DataFrame(
        _row(dual, seeds, published.get(dual), " (paper)" if published else "")
        for dual, seeds in methods.items()
    )


def _row(dual: Dual, seeds: Sequence[Trained], paper: Row | LayerRow | None, suffix: str) -> dict[str, str]:
    epsilon = seeds[0].wanted.epsilon

    def ours(of: Callable[[Trained], float], name: str = "", digits: int = 1) -> str:
        here = spread(torch.tensor([of(each) for each in seeds]), digits=digits)
        return here if paper is None or not name else f"{here} ({_published(paper, name)})"

    row = {
        "method": dual.label,
        f"train{suffix}": ours(lambda each: each.train, "train"),
        f"test{suffix}": ours(lambda each: each.test, "test"),
    }
    if not seeds[0].wanted.layerwise:
        relative = _relative(epsilon, None if paper is None else getattr(paper, "violation", None))
        return row | {
            f"violation{suffix}": ours(lambda each: each.violation, "violation"),
            f"relative %{suffix}": ours(lambda each: each.violation / epsilon) + relative,
            "lowest": ours(lambda each: each.worst),
            "at median gates": ours(lambda each: each.realised),
            "multiplier": ours(lambda each: each.multiplier.item(), digits=2),
        }
    return row | {
        f"min{suffix}": ours(lambda each: each.lowest, "lowest"),
        f"max{suffix}": ours(lambda each: each.violation, "highest"),
        f"range{suffix}": ours(lambda each: each.spread, "spread"),
    }


def _published(paper: Row | LayerRow, name: str) -> str:
    """The paper's number, with its deviation over the seeds where it has one."""
    value = f"{getattr(paper, name):.1f}"
    if not paper.deviations:
        return value
    return f"{value} ± {paper.deviations[paper._fields.index(name)]:g}"


def _relative(epsilon: float, violation: float | None) -> str:
    return "" if violation is None else f" ({violation / epsilon:.1f})"


def score(run: TargetRun, claims: list[Claim]) -> list[Claim]:
    """Keep the verdicts of this scale beside those of others that were run before, and show them together."""
    path = run.out / BY_SCALE
    known = _known(path)
    known[run.scale] = [asdict(claim) for claim in claims]
    kept = {"criteria": CRITERIA, "scales": known}
    files.write_text(path, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    if run.scale == "smoke":
        run.console.print(
            "At smoke scale nothing is learnt: it shows that everything runs. Its claims mean nothing."
        )
    scales = [scale for scale in SCALES if scale in known and scale != "smoke"]
    if len(scales) > 1:
        verdicts: dict[str, dict[str, str]] = {}
        for scale in scales:
            for each in known[scale]:
                row = verdicts.setdefault(each["claim"], {"paper": each["paper"]})
                row[scale] = f"{'holds' if each['holds'] else 'NO'}: {each['here']}"
        rows = [
            {"claim": claim, "paper": row["paper"], **{scale: row.get(scale, "") for scale in scales}}
            for claim, row in verdicts.items()
        ]
        run.table("The paper's claims, scale by scale", pd.DataFrame(rows))
    return claims


def _known(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The verdicts by scale that were kept under the same criteria."""
    try:
        kept = json.loads(path.read_bytes())
        return dict(kept["scales"]) if kept["criteria"] == CRITERIA else {}
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # none yet, or none that was written here
        return {}
