"""Tables and claims of the target `self-tuned`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nupi.paper.runner import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "SelfTuned"
TRAINED = {
    "two blind tasks": {
        "codes": "codes, six correlations within 0.05 (RMSprop)",
        "light digits": "light digits, weight and recall (AdamW, cosine)",
    },
    "two tasks seen once": {
        "tumours": "tumours, at least 95% found (Nesterov)",
        "diabetes": "diabetes, gap within 0.02 (NAdam)",
    },
}
NETWORKS = "networks on mini-batches"
TUNED_ON_THE_PLANE = "nuPI, tuned on the plane"
THERE = 1e-2  # of the plane: a distance to the optimum that counts as reached
_SETTINGS = ("task", "seed", "name", "equality", "optimizer", "noise", "data", "rule")
SOLVED = 1e-2  # of the SVM: the largest violation, and distance to lambda*
MET = 0.02  # a violation of a rate, or a share of the first violation, that counts as met


def every(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each table with its title."""
    for kind in (*TRAINED, NETWORKS):
        yield f"{kind.capitalize()}: violation on all rows; loss (mean over seeds)", _trained(frame, kind)
    yield "SVM: worst violation over the last 500 steps; distance to lambda*", _svm(frame)
    yield "Random quadratic programs: share that ends below 2% of its first violation", _programs(frame)
    yield "The plane: distance to the constrained optimum at the end", _plane(frame)
    impossible = _impossible(frame)
    rows = [
        {"optimizer": row["optimizer"], "largest multiplier": _short(row["multiplier"])}
        for _, row in impossible.iterrows()
    ]
    yield "Two constraints that cannot be met together: the largest multiplier", pd.DataFrame(rows)
    yield "Runs that end within the goal, of those that all methods have made", _met(frame)


def claims(frame: pd.DataFrame) -> list[Claim]:
    """What SelfTuned should do on each kind of task."""
    found = []
    svm = frame[(frame["task"] == "svm") & (frame["method"] == OURS)]
    for column, words in (
        ("violation", "worst violation over the last 500 steps"),
        ("lambda", "distance to lambda*"),
    ):
        bad = svm[svm[column] > SOLVED]
        missed = ", ".join(f"{n} {_short(v)}" for n, v in zip(bad["name"], bad[column], strict=True))
        found.append(
            Claim(
                f"SVM: the {words} is at most 1e-2 in every cell",
                "goal: every cell",
                f"{len(svm) - len(bad)} of {len(svm)}" + (f"; missed: {missed}" if missed else ""),
                bad.empty,
            )
        )
    programs = frame[(frame["task"] == "program") & (frame["method"] == OURS)]
    share = float((programs["violation"] < MET).mean())
    wild = int((programs["violation"] > 1.0).sum())
    found.append(
        Claim(
            "quadratic programs: at least 98% end below 2% of their first violation, and none diverges",
            "goal: 98%, 0",
            f"{100 * share:.0f}% of {len(programs)}, {wild} above their first violation",
            share >= 0.98 and wild == 0,
        )
    )
    found.append(_of_the_plane(frame))
    for kind in (NETWORKS, *TRAINED):
        met, total, best = _compared(frame, kind)
        found.append(
            Claim(
                f"{kind}: every run ends within {MET:g} of its constraints",
                "goal: all",
                f"{met} of {total}; the best fixed setting of each task, chosen afterwards, {best} of {total}",
                met == total,
            )
        )
    impossible = _impossible(frame)
    largest = float(impossible["multiplier"].max())
    found.append(
        Claim(
            "constraints that cannot be met: multipliers stay below 100 in 1,500 steps",
            "goal: no runaway",
            _short(largest),
            largest < 100,
        )
    )
    return found


def _distances(frame: pd.DataFrame) -> pd.DataFrame:
    """On the plane: how far from the optimum each method ends, start by start."""
    plane = frame[frame["task"] == "plane"]
    return plane.assign(start=plane["start"].map(str), x=plane["x"].fillna(1e9)).pivot_table(
        index="start", columns="method", values="x", sort=False
    )


def _plane(frame: pd.DataFrame) -> pd.DataFrame:
    return _distances(frame).map(_short).reset_index().rename_axis(columns=None)


def _of_the_plane(frame: pd.DataFrame) -> Claim:
    there = _distances(frame) <= THERE
    tuned = there[TUNED_ON_THE_PLANE]
    both = int((there[OURS] & tuned).sum())
    return Claim(
        "the plane: the constrained optimum, from most starts that tuned nuPI reaches it from",
        "goal: most",
        f"{both} of {int(tuned.sum())}; of all {len(there)} starts {int(there[OURS].sum())}",
        2 * both > int(tuned.sum()),
    )


def _met(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per method: how many runs of each kind end where they should."""
    task = frame["task"]
    kinds = {
        "SVM cells": task == "svm",
        "programs": task == "program",
        "networks": (task == "network") & (frame["rule"] != "impossible"),
        **{kind.removeprefix("two "): task.isin(list(tasks)) for kind, tasks in TRAINED.items()},
    }
    solved = frame[["violation", "lambda"]].max(axis=1) <= SOLVED
    frame = frame.assign(met=(frame["violation"] <= MET).where(task != "svm", solved))
    rows: dict[str, dict[str, str]] = {}
    for kind, chosen in kinds.items():
        some = frame[chosen]
        settings = [name for name in _SETTINGS if name in some and some[name].notna().all()]
        tried = some.groupby(settings)["method"].transform("nunique")
        for method, part in some[tried == tried.max()].groupby("method", sort=False):
            rows.setdefault(str(method), {})[kind] = f"{int(part['met'].sum())} of {len(part)}"
    return pd.DataFrame([{"method": method, **row} for method, row in rows.items()])


def _impossible(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame["task"] == "network") & (frame.get("rule") == "impossible")]


def _rows_of_training(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    if kind in TRAINED:
        some = frame[frame["task"].isin(list(TRAINED[kind]))].copy()
        return some.assign(label=some["task"].map(TRAINED[kind]))
    some = frame[(frame["task"] == "network") & (frame["rule"] != "impossible")].copy()
    return some.assign(label=some["data"] + ", " + some["rule"] + ", " + some["optimizer"])


def _trained(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """A row per task; per method the mean violation and loss. Of gradient ascent the setting with least violation."""
    some = _rows_of_training(frame, kind)
    rows = []
    for label, part in some.groupby("label", sort=False):
        means = part.groupby("method", sort=False)[["violation", "loss", "multiplier"]].mean()
        row = {"task": str(label)}
        ascents = means[means.index.str.startswith("gradient ascent")]
        for method in [m for m in means.index if not m.startswith("gradient ascent")]:
            row[str(method)] = _pair(means.loc[method])
        best = _best(ascents)
        row["gradient ascent, best step"] = (
            f"{_pair(ascents.loc[best])} ({best.removeprefix('gradient ascent ')})"
        )
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _best(means: pd.DataFrame) -> str:
    """The setting that meets the constraints at the least loss; if none does, the one that comes nearest."""
    met = means[means["violation"] <= MET]
    return str(met["loss"].idxmin() if len(met) else means["violation"].idxmin())


def _compared(frame: pd.DataFrame, kind: str) -> tuple[int, int, int]:
    """How many runs of ours met their constraints, of how many, and of the best fixed setting of each task."""
    some = _rows_of_training(frame, kind)
    ours = some[some["method"] == OURS]
    best = 0
    for _, part in some[~some["method"].str.startswith(OURS)].groupby("label"):
        best += int((part["violation"] <= MET).groupby(part["method"]).sum().max())
    return int((ours["violation"] <= MET).sum()), len(ours), best


def _svm(frame: pd.DataFrame) -> pd.DataFrame:
    some = frame[frame["task"] == "svm"]
    rows = []
    for cell, part in some.groupby("name", sort=False):
        row, best = {"cell": str(cell)}, (float("inf"), "")
        for one in part.to_dict("records"):
            shown = f"{_short(one['violation'])}; {_short(one['lambda'])}"
            if not str(one["method"]).startswith("gradient ascent"):
                row[str(one["method"])] = shown
            elif one["lambda"] < best[0]:
                best = (one["lambda"], shown)
        row["gradient ascent, best step"] = best[1]
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _programs(frame: pd.DataFrame) -> pd.DataFrame:
    some = frame[frame["task"] == "program"]
    rows = []
    for names, part in some.groupby(["equality", "optimizer", "noise"], sort=False):
        equality, optimizer, noise = (bool(names[0]), str(names[1]), float(str(names[2])))
        shares = (part["violation"] < MET).groupby(part["method"], sort=False).mean()
        kind = "equalities" if equality else "inequalities"
        row = {
            "problems": f"{kind}, {optimizer}{', 3% noise' if noise else ''}",
            "programs": str(part["seed"].nunique()),
        }
        rows.append({**row, **{str(method): f"{100 * share:.0f}%" for method, share in shares.items()}})
    return pd.DataFrame(rows).fillna("")


def _pair(row: Any) -> str:
    return f"{_short(row['violation'])}; {_short(row['loss'])}"


def _short(value: float) -> str:
    return "diverged" if value >= 1e8 else "0" if abs(value) < 1e-12 else f"{value:.2g}"
