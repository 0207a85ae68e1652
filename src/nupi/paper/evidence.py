"""The evidence behind the docs: runs kept under results/, and the tables of a page written from them.

    results/<target>/<scale>/summary.json and results.csv

A page says where a table comes from, and `nupi results tables` writes what belongs between the two lines:

    <!-- results: svm-dynamics/paper claims -->
    <!-- end of results -->

After the run stands what to show: `claims`, or `table 0` for the first of the tables that the target printed.
`every run`, in place of a run and what to show, lists all that is kept.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nupi import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIGITS = 6  # significant digits of a number in results.csv: more would only be larger
MOST_BYTES = 200_000  # of a results.csv; beyond it rows are left out evenly
COLUMNS = ("target", "scale", "claims held", "s", "finished (UTC)", "commit")  # of a list of runs
_BLOCK = re.compile(
    r"(?P<head><!-- results: (?:every run|(?P<run>[\w-]+/[\w-]+) (?P<what>claims|table \d+)) -->\n)(?P<body>.*?)"
    r"(?P<tail><!-- end of results -->)",
    re.DOTALL,
)


class EvidenceError(ValueError):
    """What a page asks for, or a folder holds, is no evidence."""


@dataclass(frozen=True)
class Kept:
    """A run that was kept: what summary.json says of it."""

    target: str
    scale: str
    summary: dict[str, Any]

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Each with "claim", "paper", "here" and "holds"."""
        return list(self.summary["claims"])

    @property
    def held(self) -> str:
        """How many claims held."""
        if self.summary.get("dry_run"):
            return "a dry run"
        return f"{sum(claim['holds'] for claim in self.claims)} of {len(self.claims)}"

    @property
    def row(self) -> tuple[str, ...]:
        """What a list of runs says of it, in the order of `COLUMNS`."""
        finished = self._said("finished")[:16].replace("T", " ")  # to the minute
        return (
            self.target,
            self.scale,
            self.held,
            f"{float(self._said('seconds')):.0f}",
            finished,
            self._said("commit"),
        )

    def _said(self, key: str) -> str:
        """Another entry of the summary; a dash if it has none."""
        return str(self.summary.get(key, "-"))


def keep(run: Path, folder: Path) -> Path:
    """Copy what a target wrote in `run` to where the docs' evidence is; a dry run is no evidence."""
    summary = read(run / "summary.json").summary
    if summary.get("dry_run"):
        raise EvidenceError(f"{run} is a dry run, which is no evidence")
    home = folder / str(summary["target"]) / str(summary["scale"])
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "summary.json", home / "summary.json")
    files.write_text(home / "results.csv", _small(run / "results.csv"))
    return home


def _small(path: Path) -> str:
    """A results.csv with six digits a number and, where it is large, with rows left out evenly."""
    import pandas as pd

    frame = pd.read_csv(path)
    text = frame.to_csv(index=False, float_format=f"%.{DIGITS}g")
    stride = -(-len(text) // MOST_BYTES)
    return text if stride == 1 else frame[::stride].to_csv(index=False, float_format=f"%.{DIGITS}g")


def read(path: Path) -> Kept:
    """A summary.json, checked."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        kept = Kept(summary["target"], summary["scale"], summary)
        for claim in kept.claims:
            if not isinstance(claim["holds"], bool) or not all(
                claim[key] for key in ("claim", "paper", "here")
            ):
                raise EvidenceError(f"{path}: {claim} is no claim")
    except FileNotFoundError:
        raise EvidenceError(f"{path} does not exist; `nupi reproduce` writes it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path} is not the summary of a target: {error}") from error
    return kept


def every(folder: Path) -> Iterator[Kept]:
    """All runs that were kept, by target and scale."""
    for path in sorted(folder.glob("*/*/summary.json")):
        yield read(path)


def written(page: str, folder: Path) -> str:
    """The text of a page with every table in it as the evidence has it."""
    heads = page.count("<!-- results:")
    text, found = _BLOCK.subn(lambda block: block["head"] + _body(block, folder) + block["tail"], page)
    if found != heads:
        raise EvidenceError(
            f"{heads} tables are asked for and {found} can be read: each needs a line "
            "'<!-- results: TARGET/SCALE claims -->' (or 'table N') and one '<!-- end of results -->'"
        )
    return text


def _body(block: re.Match[str], folder: Path) -> str:
    if block["run"] is None:
        return markdown(list(COLUMNS), [list(kept.row) for kept in every(folder)])
    kept = read(folder / block["run"] / "summary.json")
    if block["what"] == "claims":
        rows = [[claim["claim"], claim["paper"], claim["here"], _verdict(claim)] for claim in kept.claims]
        return markdown(["claim", "paper", "here", "holds"], rows)
    number, tables = int(block["what"].split()[1]), kept.summary.get("tables", [])
    if number >= len(tables):
        raise EvidenceError(f"{block['run']} has {len(tables)} tables, so that there is no table {number}")
    table = tables[number]
    return markdown(table["columns"], table["rows"])


def _verdict(claim: dict[str, Any]) -> str:
    return "yes" if claim["holds"] else "**no**"


def markdown(columns: list[str], rows: list[list[Any]]) -> str:
    """A table; a number has four digits, and None is an empty cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
