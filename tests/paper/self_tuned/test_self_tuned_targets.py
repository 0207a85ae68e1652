"""What the target `self-tuned` runs, and how it judges."""

import inspect

import pandas as pd
import pytest
import torch
from rich.console import Console

import nupi
from nupi.optim import self_tuning
from nupi.paper.runner import TargetRun
from nupi.paper.self_tuned import sensitivity, svm_cells, tables, target
from nupi.paper.self_tuned.constants import changed, constant
from nupi.paper.self_tuned.methods import METHODS
from nupi.paper.self_tuned.runs import TASKS, solve


@pytest.mark.parametrize("scale", ["smoke", "laptop", "desk"])
def test_every_run_is_of_a_task_and_a_method_that_exist_and_comes_once(scale):
    wanted = list(target._wanted(scale))
    assert len({repr(sorted(each.items())) for each in wanted}) == len(wanted)
    for each in wanted:
        assert each["method"] in METHODS
        task = TASKS[each["task"]]
        settings = {name: value for name, value in each.items() if name not in ("task", "method")}
        inspect.signature(task).bind(**settings)


def frame(**changes):
    """One run of each kind, all as they should be."""
    both = {"violation": 0.001, "loss": 0.3, "multiplier": 2.0}
    rows = [
        {"task": "svm", "name": "paper", "lambda": 1e-9, "x": 0.0, **both},
        {"task": "program", "seed": 1, "equality": True, "optimizer": "sgd", "noise": 0.0, **both},
        {"task": "tumours", "seed": 0, **both},
        {"task": "codes", "seed": 0, **both},
        {"task": "network", "data": "d", "rule": "rate = 35", "optimizer": "adam", "seed": 10, **both},
        {"task": "network", "data": "d", "rule": "impossible", "optimizer": "adam", "seed": 10, **both},
        {"task": "plane", "start": [0.0, -1.0], "x": 1e-3, **both},
    ]
    for row in rows:
        row.update(changes.get(row["task"], {}))
    methods = ("SelfTuned", "gradient ascent 0.1")
    others = {"plane": ("SelfTuned", tables.TUNED_ON_THE_PLANE)}
    named = [{**row, "method": method} for row in rows for method in others.get(row["task"], methods)]
    return pd.DataFrame(named)


def test_claims_hold_where_everything_is_as_it_should_be():
    claims = tables.claims(frame())
    assert len(claims) == 8
    assert all(claim.holds for claim in claims)


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({"svm": {"violation": 0.02}}, [0]),
        ({"svm": {"lambda": 0.02}}, [1]),
        ({"program": {"violation": 0.03}}, [2]),
        ({"plane": {"x": 0.02}}, [3]),
        ({"network": {"violation": 0.03}}, [4]),
        ({"codes": {"violation": 0.03}}, [5]),
        ({"tumours": {"violation": 0.03}}, [6]),
        ({"network": {"multiplier": 1e9}}, [7]),
    ],
)
def test_a_claim_fails_where_its_goal_is_missed(changes, bad):
    claims = tables.claims(frame(**changes))
    assert [number for number, claim in enumerate(claims) if not claim.holds] == bad


def test_tables_have_a_row_for_each_task():
    shown = dict(tables.every(frame()))
    assert [len(table) for table in shown.values()] == [1, 1, 1, 1, 1, 1, 2, 2]
    assert any("0.001; 0.3" in str(cell) for table in shown.values() for cell in table.to_numpy().ravel())


def test_runs_are_counted_where_every_method_has_made_them():
    runs = frame(svm={"lambda": 0.02}, codes={"violation": 0.03})
    alone = {
        "task": "program",
        "seed": 2,
        "equality": True,
        "optimizer": "sgd",
        "noise": 0.0,
        "violation": 0.0,
    }
    runs = pd.concat([runs, pd.DataFrame([{**alone, "method": "SelfTuned"}])])
    runs.loc[(runs["task"] == "tumours") & (runs["method"] != "SelfTuned"), "violation"] = 1e9
    (title, counted) = list(tables.every(runs))[-1]
    assert "Runs that end within the goal" in title
    assert counted.set_index("method").T.to_dict() == {
        "SelfTuned": {
            "SVM cells": "0 of 1",
            "programs": "1 of 1",
            "networks": "1 of 1",
            "blind tasks": "0 of 1",
            "tasks seen once": "1 of 1",
        },
        "gradient ascent 0.1": {
            "SVM cells": "0 of 1",
            "programs": "1 of 1",
            "networks": "1 of 1",
            "blind tasks": "0 of 1",
            "tasks seen once": "0 of 1",
        },
    }


def test_a_run_changes_constants_for_itself_alone():
    before = self_tuning.SPEED
    settings = {"task": "program", "seed": 3, "equality": True, "optimizer": "sgd", "steps": 120}
    fast = solve(**settings, method="SelfTuned", constants={"SPEED": 8.0})
    assert before == self_tuning.SPEED
    assert fast != solve(**settings, method="SelfTuned")


def test_other_libraries_rules_are_their_published_formulas():
    """humancompatible-train: theta += ki c + kp xi at first, then + (ki + kp (1 - nu)) c - kp (1 - nu) xi."""
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()}).double()
    dual = METHODS["humancompatible nuPI"].dual(lagrangian.parameters(), None)
    theta, xi = 0.0, 0.0
    for step, c in enumerate((1.0, 0.5, -0.25, 0.75)):
        lagrangian.ascend(dual, {"c": torch.tensor(c, dtype=torch.float64)})
        if step == 0:
            theta, xi = 0.01 * c + 1.0 * c, c
        else:
            theta += (0.01 + 0.99) * c - 0.99 * xi
            xi = 0.01 * xi + 0.99 * c
        assert lagrangian.multipliers["c"].item() == pytest.approx(theta)


def test_each_constant_of_the_rule_is_changed_to_both_sides():
    changes = sensitivity._changes(few=False)
    for name in sensitivity.CONSTANTS:
        low, high = (change["constants"][name] for change in changes if name in change.get("constants", {}))
        assert low < constant(name) < high


@pytest.mark.usefixtures("quick_workers")
def test_the_cells_of_the_svm_at_smoke_scale(tmp_path):
    """The paper's own cell and one in another unit; omnisafe's gains are for neither."""
    console = Console(quiet=True)
    run = TargetRun("svm-cells", "smoke", tmp_path / "svm-cells", console)
    (claim,) = svm_cells.svm_cells(run)
    assert claim.holds
    ((title, rows),) = [(each["title"], each["rows"]) for each in run.tables]
    assert "worst violation" in title
    assert [row[0] for row in rows] == ["omnisafe PID", "SelfTuned"]
    assert rows[0][-1] != rows[1][-1] == "2 of 2"
    assert (tmp_path / "svm-cells" / "figure.png").stat().st_size > 10_000


def test_constants_are_put_back_also_after_an_error():
    names = ("SPEED", "measuring.LATER")
    before = [constant(name) for name in names]

    def failing():
        with changed(dict.fromkeys(names, 0.5)):
            assert [constant(name) for name in names] == [0.5, 0.5]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert [constant(name) for name in names] == before
