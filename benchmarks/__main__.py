"""`python -m benchmarks [NAME…]`: run the benchmarks and print their ratios."""

from __future__ import annotations

import importlib
import sys

import torch
from rich.console import Console
from rich.table import Table

NAMES = (
    "walk",
    "step",
    "atomic",
    "overhead",
    "monitor",
    "gates",
    "dense",
    "indexed",
    "groups",
    "distributed",
    "importing",
    "sweep",
    "hooked",
    "self_tuned",
)


def main() -> None:
    names = sys.argv[1:] or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    console = Console(width=140)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; a ratio compares two things of one run"
    )
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        table = Table(title=(module.__doc__ or name).splitlines()[0], title_justify="left")
        for column in ("what", "ratio", "wanted", "", "best times"):
            table.add_column(column, justify="right" if column == "ratio" else "left")
        for row in module.run():
            mark = "" if row.met is None else "[green]met[/]" if row.met else "[red]missed[/]"
            table.add_row(row.what, f"{row.ratio:.2f}", row.bound, mark, row.note)
        console.print(table)


if __name__ == "__main__":
    main()
