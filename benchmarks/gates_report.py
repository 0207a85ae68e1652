"""The report on `gates_pruning`: the summary, the figure, and the table of docs/gates.md."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.gates_tasks import TASKS

RESULTS = Path(__file__).parents[1] / "results" / "pruning"
GUIDE = RESULTS.parents[1] / "docs" / "gates.md"
FIRST = 0.6
SHARES = (0.5, 0.25)
COLUMNS = (
    *("task", "method", "asked", "seed", "accuracy", "parameters", "flops", "milliseconds"),
    *("steps", "dense_steps", "seconds", "surgery", "ended"),
)
HEAD = (
    "| task | method | FLOPs asked | test accuracy (%) | FLOPs left | parameters left | ms | steps | training (s) | "
    "surgery (s) |"
)


def read() -> list[dict[str, str]]:
    path = RESULTS / "results.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> list[dict[str, Any]]:
    """By task, method and share: the mean over seeds, and the standard deviation of the accuracy."""
    found = read()
    keys = dict.fromkeys((each["task"], each["method"], each["asked"]) for each in found)
    lines = []
    for task, method, asked in keys:
        runs = [
            each for each in found if (each["task"], each["method"], each["asked"]) == (task, method, asked)
        ]
        dense = [each for each in found if (each["task"], each["method"]) == (task, "dense")]
        mean = {column: statistics.fmean(float(each[column]) for each in runs) for column in COLUMNS[4:-1]}
        full = {column: statistics.fmean(float(each[column]) for each in dense) for column in mean}
        lines.append(
            {
                "task": task,
                "method": method,
                "asked": float(asked),
                "seeds": len(runs),
                "accuracy": round(mean["accuracy"], 1),
                "spread": round(statistics.pstdev(float(each["accuracy"]) for each in runs), 1),
                "parameters": round(mean["parameters"] / full["parameters"], 3),
                "flops": round(mean["flops"] / full["flops"], 3),
                "milliseconds": round(mean["milliseconds"], 1),
                "steps": round(mean["steps"]),
                "dense_steps": round(mean["dense_steps"]),
                "seconds": round(mean["seconds"]),
                "surgery": round(mean["surgery"], 1),
            }
        )
    return sorted(lines, key=lambda line: (line["task"], -line["asked"], line["method"]))


def figure(lines: list[dict[str, Any]]) -> None:
    """The trade-off: accuracy against harvested FLOPs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tasks = list(dict.fromkeys(line["task"] for line in lines))
    shown, axes = plt.subplots(1, len(tasks), figsize=(4.6 * len(tasks), 3.4), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        dense = [line for line in lines if line["task"] == task and line["method"] == "dense"]
        for method, marker in (("gates", "o"), ("magnitude", "s"), ("l1", "^")):
            here = [line for line in lines if line["task"] == task and line["method"] == method] + dense
            here.sort(key=lambda line: line["flops"])
            axis.errorbar(
                [line["flops"] for line in here],
                [line["accuracy"] for line in here],
                [line["spread"] for line in here],
                marker=marker,
                capsize=3,
                label={"gates": "gates under a budget", "magnitude": "magnitude", "l1": "L1"}[method],
            )
        axis.set(
            title=TASKS[task].title, xlabel="share of the FLOPs that is left", ylabel="test accuracy (%)"
        )
        axis.legend()
    shown.tight_layout()
    shown.savefig(GUIDE.parent / "figures" / "pruning.png", dpi=130)


def markdown(lines: list[dict[str, Any]]) -> list[str]:
    """The table of docs/gates.md."""
    text = [
        HEAD,
        "|" + " --- |" * (HEAD.count("|") - 1),
    ]
    text += [
        f"| {TASKS[line['task']].title} | {line['method']} | {line['asked']:g} | {line['accuracy']:.1f} ± "
        f"{line['spread']:.1f} | {line['flops']:.3f} | {line['parameters']:.3f} | {line['milliseconds']:.1f} | "
        f"{line['steps']:,} | {line['seconds']} | {line['surgery']:.1f} |"
        for line in lines
    ]
    return text


def report() -> None:
    """Write the summary and the figure, and replace the table in the guide."""
    lines = table()
    figure(lines)
    summary = {"target": "pruning", "shares": SHARES, "first": FIRST, "table": lines}
    (RESULTS / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    new = "\n".join(markdown(lines)) + "\n"
    guide, count = re.subn(rf"{re.escape(HEAD)}\n(\|.*\n)+", lambda _: new, GUIDE.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{GUIDE} has {count} tables of this kind, and must have one to replace")
    GUIDE.write_text(guide, encoding="utf-8")
    print(new)
