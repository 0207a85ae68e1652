"""Target `self-tuned-steep`: a rate of decisions, bounded through surrogates that are more and more like a step.

A network has fitted its data before the multiplier matters, so that its loss is nearly flat there; and rows far from
the threshold have no gradient of the surrogate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR

from nupi import Inequality, Measured
from nupi.paper import jobs, style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.paper.self_tuned import methods
from nupi.paper.self_tuned.task import OPTIMIZERS, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = "2"
ROWS, FEATURES, BATCH, EPOCHS = 4_000, 10, 128, 30
RATES = {"adamw": 3e-3, "sgd": 0.1}
MET = 0.01  # above the limit, in the share of all rows
SEEDS = {
    "smoke": range(20, 21),
    "laptop": range(20, 25),
    "desk": range(20, 40),
}  # not those of development: 0 to 6
SETTINGS: dict[str, dict[str, Any]] = {
    "sigmoid(z)": {"sharpness": 1.0},
    "sigmoid(4 z)": {"sharpness": 4.0},
    "sigmoid(10 z)": {"sharpness": 10.0},
    "sigmoid(4 z), at most 5%": {"sharpness": 4.0, "limit": 0.05},
    "sigmoid(4 z), constant rate": {"sharpness": 4.0, "cosine": False},
    "sigmoid(4 z), SGD": {"sharpness": 4.0, "optimizer": "sgd"},
}
RIVALS = (
    *(f"gradient ascent {ki:g}" for ki in methods.GRID),
    "restarts 0.1",
    "nuPI 0.03, 5, 0.9",
    "humancompatible nuPI",
    "humancompatible ALM",
    "omnisafe PID",
)


def steep(
    *, sharpness: float, seed: int, limit: float = 0.15, cosine: bool = True, optimizer: str = "adamw"
) -> Task:
    """At most a share of positive decisions; the model sees sigmoid(sharpness z), the multiplier z > 0."""
    rng = torch.Generator().manual_seed(seed)
    rows, direction = torch.randn(ROWS, FEATURES, generator=rng), torch.randn(FEATURES, generator=rng)
    labels = (rows @ direction + 0.5 * torch.randn(ROWS, generator=rng) > 1).float()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    primal = OPTIMIZERS[optimizer](model.parameters(), lr=RATES[optimizer])
    steps = EPOCHS * -(-ROWS // BATCH)
    schedule = CosineAnnealingLR(primal, steps) if cosine else ConstantLR(primal, 1.0)
    waiting: list[torch.Tensor] = []
    begun = False

    def evaluate() -> tuple[torch.Tensor, dict[str, Any]]:
        nonlocal begun
        if begun:
            schedule.step()
        begun = True
        if not waiting:
            waiting.extend(torch.randperm(ROWS, generator=rng).split(BATCH))
        some = waiting.pop()
        logits = model(rows[some]).squeeze(1)
        soft, hard = torch.sigmoid(sharpness * logits).mean(), (logits > 0).float().mean()
        return cross_entropy(logits, labels[some]), {"rate": Measured(soft - limit, hard - limit)}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            logits = model(rows).squeeze(1)
            above = float((logits > 0).float().mean()) - limit
            right = float(((logits > 0) == labels.bool()).float().mean())
        return {"violation": max(above, 0.0), "above": above, "accuracy": right}

    return Task("steep", list(model.parameters()), primal, {"rate": Inequality()}, evaluate, steps, judge)


@target(
    "self-tuned-steep",
    paper="not in the paper",
    about="SelfTuned where the surrogate of a rate is steep and the loss is flat, beside gains set by hand",
    scales=("smoke", "laptop", "desk"),
)
def self_tuned_steep(run: TargetRun) -> list[Claim]:
    """Train with every surrogate and every method, and count the runs that meet the limit."""
    from nupi.paper.self_tuned.runs import solve

    smoke = run.scale == "smoke"
    names = list(SETTINGS)[: 1 if smoke else None]
    compared = ("SelfTuned", *RIVALS[: 1 if smoke else None])
    wanted = [
        {"task": "steep", "method": method, "seed": seed, **SETTINGS[name]}
        for name in names
        for method in compared
        for seed in SEEDS[run.scale]
    ]
    outcomes = jobs.run(solve, wanted, run.jobs, version=VERSION)
    found = jobs.values(run.progress(outcomes, "training", total=len(wanted)))
    label = {tuple(sorted(setting.items())): name for name, setting in SETTINGS.items()}
    frame = pd.DataFrame(
        [
            {"surrogate": label[tuple(sorted(_setting(given).items()))], **given, **value}
            for given, value in found
        ]
    )
    run.results(frame)
    run.table("Runs that end within 1 point of the limit", _counted(frame, names, compared))
    run.figure(_figure(frame, names))
    return [_claim(frame, names)]


def _setting(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in {"task", "method", "seed"}}


def _met(frame: pd.DataFrame) -> pd.Series:
    return frame["violation"] <= MET


def _counted(frame: pd.DataFrame, names: list[str], compared: tuple[str, ...]) -> pd.DataFrame:
    """One row a method: how many runs of each surrogate met the limit, and the accuracy of those that did."""
    rows = []
    for method in compared:
        mine = frame[frame["method"] == method]
        counts = {
            name: f"{int(_met(each).sum())} of {len(each)}"
            for name in names
            for each in [mine[mine["surrogate"] == name]]
        }
        right = mine[_met(mine)]["accuracy"]
        rows.append(
            {
                "method": method,
                **counts,
                "all": f"{int(_met(mine).sum())} of {len(mine)}",
                "accuracy of these": f"{right.mean():.1%}" if len(right) else "-",
            }
        )
    return pd.DataFrame(rows)


def _claim(frame: pd.DataFrame, names: list[str]) -> Claim:
    met = {
        str(method): int(_met(each).sum())
        for method, each in frame[frame["surrogate"].isin(names)].groupby("method", sort=False)
    }
    ours, total = met.pop("SelfTuned"), int((frame["method"] == "SelfTuned").sum())
    best = max(met, key=lambda method: met[method])
    return Claim(
        "SelfTuned meets the limit as often as the best gains set by hand",
        "goal: all",
        f"{ours} of {total}; {best} {met[best]} of {total}",
        ours >= met[best],
    )


def _figure(frame: pd.DataFrame, names: list[str]) -> Figure:
    fig = style.figure(6.5, 3.2)
    axis = fig.subplots()
    ours = frame["method"] == "SelfTuned"
    for place, name in enumerate(names):
        here = frame["surrogate"] == name
        for shift, chosen, key, text in (
            (-0.12, here & ~ours, "ga", "gains set by hand"),
            (0.12, here & ours, "self-tuned", "SelfTuned"),
        ):
            values = 100 * frame[chosen]["above"].clip(-20, 60)
            axis.plot(
                values,
                [place + shift] * len(values),
                "o",
                markersize=3 if key == "ga" else 5,
                color=style.colour(key),
                label=text if place == 0 else None,
            )
    axis.axvline(0.0, color="0.5", linewidth=0.8)
    axis.set(
        yticks=range(len(names)), yticklabels=names, xlabel="positive decisions above the limit, in points"
    )
    axis.invert_yaxis()
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return fig
