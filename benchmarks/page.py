"""The rows behind docs/benchmarks.md: kept in results/benchmarks/results.csv, and written into the page as one table.

`python -m benchmarks --save [NAME…]` calls `save`: it replaces the rows of the benchmarks that were run, keeps the
others, and rewrites the table between the two marks of the page. `--repeat` calls `repeat`: it adds its rows to
results/benchmarks/repeats.csv, and the table then shows the range of ratios of the repeats. No result is selected: the
first run stays in the table until `--save` replaces it and its repeats.
"""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nupi import files
from nupi.paper import evidence
from nupi.paper.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.timing import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks" / "results.csv"
REPEATS = RESULTS.with_name("repeats.csv")
PAGE = ROOT / "docs" / "benchmarks.md"
START, END = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->"
COLUMNS = (
    "benchmark",
    "what",
    "ratio",
    "wanted",
    "met",
    "best times",
    "torch",
    "cores",
    "date",
    "commit",
)
SHOWN = ["benchmark", "what", "ratio", "wanted", "met", "repeated", "best times"]
MET = {None: "", True: "yes", False: "no"}


def entries(benchmark: str, rows: Iterable[Row]) -> list[dict[str, str]]:
    """The rows of one benchmark, as the CSV has them."""
    origin = provenance()
    where = {
        "torch": torch.__version__,
        "cores": str(os.cpu_count()),
        "date": origin["finished"],
        "commit": origin["commit"],
    }
    return [
        {
            "benchmark": benchmark,
            "what": row.what,
            "ratio": f"{row.ratio:.4g}",
            "wanted": row.bound,
            "met": MET[row.met],
            "best times": row.note,
            **where,
        }
        for row in rows
    ]


def read(path: Path) -> list[dict[str, str]]:
    """The kept rows; empty if there are none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def merged(
    kept: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]], order: Sequence[str]
) -> list[Mapping[str, str]]:
    """The new rows, and the kept ones of all other benchmarks, in the order of the benchmarks."""
    replaced = {row["benchmark"] for row in new}
    rows = [row for row in kept if row["benchmark"] not in replaced] + [*new]
    return sorted(rows, key=lambda row: order.index(row["benchmark"]))


def table(rows: Sequence[Mapping[str, str]], repeats: Sequence[Mapping[str, str]] = ()) -> str:
    """One table in Markdown, and below it where its rows come from."""
    shown = [
        [
            f"`{row['benchmark']}`",
            row["what"],
            _number(float(row["ratio"])),
            row["wanted"],
            row["met"].replace("no", "**no**"),
            _spread(row, repeats),
            row["best times"],
        ]
        for row in rows
    ]
    origins: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        origin = (row["cores"], row["torch"], row["date"][:10], row["commit"])
        names = origins.setdefault(origin, [])
        if row["benchmark"] not in names:
            names.append(row["benchmark"])
    notes = [
        f"- {', '.join(names)}: {cores} cores, torch {version}, {date}, commit {commit}\n"
        for (cores, version, date, commit), names in origins.items()
    ]
    return evidence.markdown(SHOWN, [*shown]) + "\nWhere these rows come from:\n\n" + "".join(notes)


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _spread(row: Mapping[str, str], repeats: Sequence[Mapping[str, str]]) -> str:
    """The smallest and the largest ratio of the repeats of a row, and how many there are."""
    same = [each for each in repeats if all(each[key] == row[key] for key in ("benchmark", "what"))]
    ratios = [float(each["ratio"]) for each in same]
    if len(ratios) < 2:
        return "".join(f"{_number(ratio)} (1)" for ratio in ratios)
    return f"{_number(min(ratios))} to {_number(max(ratios))} ({len(ratios)})"


def written(page: str, rows: Sequence[Mapping[str, str]], repeats: Sequence[Mapping[str, str]] = ()) -> str:
    """The text of the page with the new table between its marks."""
    text, count = re.subn(
        f"{re.escape(START)}.*?{re.escape(END)}",
        lambda _: START + table(rows, repeats) + END,
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(
            f"the page has {count} places for the table: it needs one line {START!r} and one {END!r}"
        )
    return text


def save(new: Sequence[Mapping[str, str]], order: Sequence[str]) -> None:
    """Keep the rows of a run, forget repeats of older ones, and write the table of the page."""
    replaced = {row["benchmark"] for row in new}
    _write(RESULTS, merged(read(RESULTS), new, order))
    if REPEATS.exists():
        _write(REPEATS, [row for row in read(REPEATS) if row["benchmark"] not in replaced])
    _write_page()


def repeat(new: Sequence[Mapping[str, str]]) -> None:
    """Add the rows of a run to the repeats, and write the table of the page."""
    _write(REPEATS, [*read(REPEATS), *new])
    _write_page()


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, buffer.getvalue())


def _write_page() -> None:
    files.write_text(PAGE, written(PAGE.read_text(encoding="utf-8"), read(RESULTS), read(REPEATS)))
