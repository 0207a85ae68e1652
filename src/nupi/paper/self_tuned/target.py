"""Target `self-tuned`: SelfTuned at T = a quarter of training beside gains set by hand, task by task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from nupi.paper import jobs
from nupi.paper.runner import Claim, Scale, TargetRun, target
from nupi.paper.self_tuned import split, tables
from nupi.paper.self_tuned.methods import GRID
from nupi.paper.self_tuned.quadratics import CELLS
from nupi.paper.self_tuned.runs import VERSION, solve

if TYPE_CHECKING:
    from collections.abc import Iterable

Settings = dict[str, Any]

RIVALS = ("nuPI 0.03, 5, 0.9", "restarts 0.1", "humancompatible nuPI", "humancompatible ALM", "omnisafe PID")
ASCENTS = tuple(f"gradient ascent {ki:g}" for ki in GRID)
SIZES: dict[Scale, dict[str, int]] = {
    "smoke": {"programs": 1, "seeds": 1, "cells": 2, "starts": 1},
    "laptop": {"programs": 20, "seeds": 2, "cells": len(CELLS), "starts": 4},
    "desk": {"programs": 200, "seeds": 5, "cells": len(CELLS), "starts": 25},
}
COMPARED = 20  # programs a cell that fixed gains are run on, too
FIRST_PROGRAM = split.TEST["quadratic programs"].start
PROGRAMS = (("sgd", 0.0), ("momentum", 0.0), ("adam", 0.0), ("sgd", 0.03), ("adam", 0.03))
RULES = ("recall 80, rate 40", "rate = 35", "rate <= 10")
STARTS = (
    *((1.0, -1.0), (0.0, -1.0), (-1.0, -1.0), (1.0, 1.0)),
    *(
        (x, y)
        for x in range(-2, 3)
        for y in range(-2, 3)
        if (x, y) not in ((1, -1), (0, -1), (-1, -1), (1, 1))
    ),
)
"""Of the plane: a grid over the area of `plane-kp`'s map of starts; the first are for smaller scales."""
ON_THE_PLANE = ("SelfTuned", tables.TUNED_ON_THE_PLANE)
OPTIMIZERS = ("adam", "adamw", "momentum")
FEW_CELLS = ("paper", "units x100", "Adam")  # of the SVM, for methods with fixed gains below desk scale


@target(
    "self-tuned",
    paper="not in the paper",
    about="gains that find themselves, beside gains set by hand and other libraries' defaults",
    scales=("smoke", "laptop", "desk"),
)
def self_tuned(run: TargetRun) -> list[Claim]:
    """Run every task with every method, and judge SelfTuned on each."""
    # SelfTuned first: a run that is cut short then has what the claims are about.
    wanted = sorted(_wanted(run.scale), key=lambda settings: settings["method"] != "SelfTuned")
    outcomes = jobs.run(solve, wanted, run.jobs, version=VERSION)
    found = jobs.values(run.progress(outcomes, "training", total=len(wanted)))
    frame = pd.DataFrame([{**settings, **value} for settings, value in found])
    frame = frame.sort_values([name for name in ("task", "method") if name in frame], kind="stable")
    run.results(frame)
    for title, table in tables.every(frame):
        run.table(title, table)
    return tables.claims(frame)


def _wanted(scale: Scale) -> Iterable[Settings]:
    size, desk = SIZES[scale], scale == "desk"
    everyone = ("SelfTuned", *(ASCENTS if desk else ASCENTS[1:3]), *RIVALS)
    if scale == "smoke":
        everyone = ("SelfTuned", ASCENTS[1])
    for seed in range(size["seeds"]):
        for task in (*split.TEST["blind"], *split.TEST["unseen"]):
            yield from ({"task": task, "seed": seed, "method": method} for method in everyone)
    for chosen in _networks(desk=desk, seeds=size["seeds"]):
        yield from ({"task": "network", **chosen, "method": method} for method in everyone)
    for optimizer in ("adam", "momentum"):
        chosen = {"data": "low_digits", "rule": "impossible", "optimizer": optimizer, "seed": 10}
        yield {"task": "network", **chosen, "method": "SelfTuned"}
    for cell in list(CELLS)[: size["cells"]]:
        methods = everyone if desk or cell in FEW_CELLS else ("SelfTuned",)
        yield from ({"task": "svm", "name": cell, "method": method} for method in methods)
    for number in range(FIRST_PROGRAM, FIRST_PROGRAM + size["programs"]):
        for equality in (True, False):
            for optimizer, noise in PROGRAMS:
                chosen = {"seed": number, "equality": equality, "optimizer": optimizer, "noise": noise}
                methods = everyone if desk and number < FIRST_PROGRAM + COMPARED else ("SelfTuned",)
                yield from ({"task": "program", **chosen, "method": method} for method in methods)
    for start in STARTS[: size["starts"]]:
        for method in ON_THE_PLANE:
            yield {"task": "plane", "start": [float(each) for each in start], "method": method}


def _networks(*, desk: bool, seeds: int) -> Iterable[Settings]:
    """At desk scale every rule with every optimizer, the data sets in turn; else one optimizer a rule."""
    for seed in range(10, 10 + seeds if desk else 11):
        for number, rule in enumerate(RULES):
            for place, optimizer in enumerate(OPTIMIZERS):
                if desk or place == number:
                    data = ("low_digits", "adult_rows")[(number + place) % 2]
                    yield {"data": data, "rule": rule, "optimizer": optimizer, "seed": seed}
