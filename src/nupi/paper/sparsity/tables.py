"""What came out beside the paper's numbers, and the paper's claims scale by scale."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from nupi.paper.fairness.curves import spread
from nupi.paper.runner import SCALES, Claim, Run, write_atomically
from nupi.paper.sparsity.published import LayerRow, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.runs import Trained

BY_SCALE = "scores.json"
CRITERIA = (
    2  # change it when a claim is judged otherwise: verdicts that were kept under another one are dropped
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


def beside(
    methods: Mapping[Dual, Sequence[Trained]], published: Mapping[Dual, Row | LayerRow]
) -> pd.DataFrame:
    """A row a method, mean and deviation over the seeds; the paper's numbers in brackets where it has them."""
    return pd.DataFrame(
        _row(dual, seeds, published.get(dual), " (paper)" if published else "")
        for dual, seeds in methods.items()
    )


def _row(dual: Dual, seeds: Sequence[Trained], paper: Row | LayerRow | None, suffix: str) -> dict[str, str]:
    def ours(of: Callable[[Trained], float], theirs: float | None = None, digits: int = 1) -> str:
        here = spread(torch.tensor([of(each) for each in seeds]), digits=digits)
        return here if theirs is None else f"{here} ({theirs:.1f})"

    row = {
        "method": dual.label,
        f"train{suffix}": ours(lambda each: each.train, paper and paper.train),
        f"test{suffix}": ours(lambda each: each.test, paper and paper.test),
    }
    if not seeds[0].wanted.layerwise:
        single = paper if isinstance(paper, Row) else None
        return row | {
            f"violation{suffix}": ours(lambda each: each.violation, single and single.violation),
            "lowest": ours(lambda each: each.worst),
            "at median gates": ours(lambda each: each.realised),
            "multiplier": ours(lambda each: each.multiplier.item(), digits=2),
        }
    layer = paper if isinstance(paper, LayerRow) else None
    return row | {
        f"min{suffix}": ours(lambda each: each.lowest, layer and layer.lowest),
        f"max{suffix}": ours(lambda each: each.violation, layer and layer.highest),
        f"range{suffix}": ours(lambda each: each.spread, layer and layer.spread),
    }


def score(run: Run, claims: list[Claim]) -> list[Claim]:
    """Keep the verdicts of this scale beside those of others that were run before, and show them together."""
    path = run.out / BY_SCALE
    known = _known(path)
    known[run.scale] = [asdict(claim) for claim in claims]
    kept = {"criteria": CRITERIA, "scales": known}
    write_atomically(path, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
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
