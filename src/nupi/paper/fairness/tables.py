"""The tables of the fairness experiment: where the methods end, group by group, and what a user ships."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch

from nupi.paper import jobs
from nupi.paper.fairness import rivals
from nupi.paper.numbers import percent, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.paper.data import adult
    from nupi.paper.fairness.curves import Curves
    from nupi.paper.runner import TargetRun

RIVALS = {
    "smoke": [("logistic", 2)],
    "laptop": [("logistic", 50), ("trees", 50)],
    "paper": [("logistic", 50), ("trees", 50)],
}


def ends(curves: Mapping[str, Curves]) -> pd.DataFrame:
    """Where each method ends, as a table for the reader."""
    rows = [
        {
            "method": name,
            "train accuracy": percent(each.final(each.accuracy), 2),
            "max violation (soft)": percent(each.final(each.violation), 2),
            "max violation (hard)": percent(each.final(each.hard_violation), 2),
            "largest average gap": percent(each.final(each.gaps).abs().amax(1), 2),
            "first below 5%": spread(each.first_below(0.05), digits=0),
            "multiplier step": spread(each.noise(), digits=4),
        }
        for name, each in curves.items()
    ]
    return pd.DataFrame(rows)


def by_group(each: Curves, data: adult.Adult) -> pd.DataFrame:
    """What is left of the gaps: their average over the last epochs, and how far they swing about it."""
    gaps = each.last(each.gaps)
    columns = {
        "group": data.groups,
        "training rows": data.train.groups.bincount(),
        "average gap (points)": (100 * gaps.mean((0, 1))).round(decimals=2),
        "swing (points)": (100 * gaps.std(1, correction=0).mean(0)).round(decimals=2),
        "hard gap (points)": (100 * each.last(each.hard_gaps).mean((0, 1))).round(decimals=1),
        "multiplier": each.last(each.multipliers).mean((0, 1)).round(decimals=3),
    }
    return pd.DataFrame({name: list(map(_plain, column)) for name, column in columns.items()})


def _plain(value: str | torch.Tensor) -> str | float:
    return value if isinstance(value, str) else round(value.item(), 4)


def shipped(run: TargetRun, curves: Mapping[str, Curves], data: adult.Adult) -> pd.DataFrame:
    """The last model of every run and fairlearn's solver, on both splits, by fairlearn's metrics."""
    wanted = [
        {"estimator": estimator, "bound": 0.01, "rounds": rounds} for estimator, rounds in RIVALS[run.scale]
    ]
    outcomes = jobs.run(rivals.exponentiated_gradient, wanted, run.jobs, version=rivals.VERSION)
    models = [
        (name, each.train_positive, each.test_positive, each.seconds.mean().item())
        for name, each in curves.items()
    ]
    for settings, value in jobs.values(run.progress(outcomes, "fitting fairlearn's solver", len(wanted))):
        name = f"fairlearn EG, {settings['estimator']} ({value['models']} models)"
        models.append((name, value["train_positive"][None], value["test_positive"][None], value["seconds"]))
    rows, disagreement = [], 0.0
    for name, on_train, on_test, seconds in models:
        train = [rivals.judge(positive, data.train) for positive in on_train]
        test = [rivals.judge(positive, data.test) for positive in on_test]
        disagreement = max([disagreement, *(verdict["disagreement"] for verdict in train + test)])
        rows.append(
            {
                "classifier": name,
                "train accuracy": _percent(train, "accuracy"),
                "train gap": _percent(train, "gap"),
                "test accuracy": _percent(test, "accuracy"),
                "test gap": _percent(test, "gap"),
                "by chance": _percent(test, "chance"),
                "mean test gap": _percent(test, "mean_gap"),
                "CPU seconds": f"{seconds:.0f}",
            }
        )
    rows.append(
        {
            "classifier": "one that knows the labels, at exact parity",
            "train accuracy": f"{rivals.parity_ceiling(data.train):.1%}",
            "train gap": "0.0%",
            "test accuracy": f"{rivals.parity_ceiling(data.test):.1%}",
            "test gap": "0.0%",
            **dict.fromkeys(("by chance", "mean test gap", "CPU seconds"), ""),
        }
    )
    table = pd.DataFrame(rows)
    table.attrs["disagreement"] = disagreement
    return table


def results(curves: Mapping[str, Curves]) -> pd.DataFrame:
    """One row a method, seed and epoch: the numbers behind the figure."""
    frames = []
    for name, each in curves.items():
        for seed in range(len(each.accuracy)):
            columns = {
                "method": name,
                "seed": seed,
                "epoch": range(each.epochs + 1),
                "train_accuracy": each.accuracy[seed].numpy(),
                "max_violation": each.violation[seed].numpy(),
                "hard_max_violation": each.hard_violation[seed].numpy(),
            }
            columns |= {
                f"multiplier_{g}": each.multipliers[seed, :, g].numpy()
                for g in range(each.multipliers.shape[2])
            }
            frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True).round(6)


def _percent(verdicts: list[dict[str, float]], key: str) -> str:
    return percent(torch.tensor([verdict[key] for verdict in verdicts]))
