"""`python -m benchmarks [--save | --repeat] [NAME…]`: run the benchmarks and print their ratios.

`--save` writes the rows to results/benchmarks/results.csv, and from there into docs/benchmarks.md. `--repeat` adds them
to repeats.csv beside it, and the page then shows the spread of the repeats.
"""

from __future__ import annotations

import argparse
import importlib

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import page

NAMES = (
    "walk",
    "step",
    "step_groups",
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks, as ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(NAMES)}")
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--save", action="store_true", help="write the results and docs/benchmarks.md")
    keep.add_argument("--repeat", action="store_true", help="add a repeat of results that were saved")
    arguments = parser.parse_args()
    names = arguments.names or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    console = Console(width=140)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; a ratio compares two things of one run"
    )
    threads = torch.get_num_threads()
    for name in names:
        torch.set_num_threads(threads)  # an earlier benchmark may have set another number
        module = importlib.import_module(f"benchmarks.{name}")
        table = Table(title=(module.__doc__ or name).splitlines()[0], title_justify="left")
        for column in ("what", "ratio", "wanted", "", "best times"):
            table.add_column(column, justify="right" if column == "ratio" else "left")
        rows = module.run()
        for row in rows:
            mark = "" if row.met is None else "[green]met[/]" if row.met else "[red]missed[/]"
            table.add_row(row.what, f"{row.ratio:.2f}", row.bound, mark, row.note)
        console.print(table)
        if arguments.save:  # at once, so that nothing is lost if a later benchmark fails
            page.save(page.entries(name, rows), NAMES)
        elif arguments.repeat:
            page.repeat(page.entries(name, rows))


if __name__ == "__main__":
    main()
