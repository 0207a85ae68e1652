"""The command `nupi`: what can be reproduced, and reproducing it.

A sub-command is a function with `@app.command()` in this file, or a typer app added with `app.add_typer`.
"""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nupi import files
from nupi.monitor.command import app as monitor_app
from nupi.paper import data as datasets
from nupi.paper import evidence, jobs, runner
from nupi.paper.data.fetch import DataUnavailableError, cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

WIDE = 150  # columns
app = typer.Typer(
    help="Reproduce the figures and tables of the nuPI paper, each with claims that are checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_targets() -> None:
    """Show every target, where the paper has it, and the scales it runs at."""
    table = Table()
    for heading in ("target", "paper", "about", "scales"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "target")
    for target in runner.all_targets().values():
        table.add_row(*map(escape, (target.name, target.paper, target.about, " ".join(target.scales))))
    _console().print(table)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="TARGET...", help="one or more of `nupi list`")],
    scale: Annotated[
        runner.Scale,
        typer.Option(help="smoke: seconds; laptop: minutes; desk: hours on 2 cores; paper: the paper's own"),
    ] = "laptop",
    out: Annotated[Path, typer.Option(help="where to write; each target has a directory of its own")] = Path(
        "out"
    ),
    executor: Annotated[
        Literal["local", "submitit"],
        typer.Option(help="who runs a target's independent jobs: this machine's cores, or submitit (SLURM)"),
    ] = "local",
    executor_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="for submitit, as slurm_partition=cpu or timeout_min=60"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="an option of the targets, as trained=gated"),
    ] = None,
) -> None:
    """Reproduce targets: figures, results.csv, summary.json; exit 1 if a claim does not hold."""
    console = _console()
    try:
        chosen = [runner.find_target(name) for name in dict.fromkeys(names)]
    except runner.UnknownTargetError as unknown:
        raise typer.BadParameter(str(unknown), param_hint="TARGET") from None
    try:
        for target in chosen:
            runner.check_writable(out / target.name)
    except OSError as error:
        typer.echo(f"--out {out}: cannot write there: {error.strerror}: {error.filename}", err=True)
        raise typer.Exit(2) from None

    options = _options(executor_option or [], "--executor-option")
    chosen_settings = {key: str(value) for key, value in _options(setting or [], "--set").items()}
    for target in chosen:
        if unknown_settings := [key for key in chosen_settings if key not in target.options]:
            known = ", ".join(target.options) or "none"
            raise typer.BadParameter(
                f"{target.name} has no option {unknown_settings[0]!r}; it has {known}", param_hint="--set"
            )
    if options and executor == "local":
        raise typer.BadParameter("only --executor submitit takes options", param_hint="--executor-option")
    wrong: list[str] = []
    held: list[tuple[str, str, str]] = []
    # As Ctrl-C does, a termination ends what jobs are at work before it ends the command; what is finished is kept.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for target in chosen:
        try:
            with jobs.submitted(options) if executor == "submitit" else nullcontext():
                claims = runner.reproduce(target, scale, out, console, chosen_settings)
        except DataUnavailableError as missing:
            console.print(str(missing), markup=False, soft_wrap=True)
            wrong.append(f"{target.name} failed: its data could not be had")
            continue
        except Exception as error:  # noqa: BLE001 - one target that fails must not take the others with it
            console.print_exception(max_frames=8)
            first_line = str(error).partition("\n")[0]
            wrong.append(f"{target.name} failed: {type(error).__name__}: {first_line}")
            continue
        failing = [claim.claim for claim in claims if not claim.holds]
        held.append((target.name, f"{len(claims) - len(failing)} of {len(claims)}", str(out / target.name)))
        if failing:
            wrong.append(
                f"{target.name}: {len(failing)} of {len(claims)} claims do not hold: {'; '.join(failing)}"
            )
    if len(chosen) > 1:
        console.print(_overview(held))
    for line in wrong:
        console.print(line, style="bold red", markup=False)
    if wrong:
        raise typer.Exit(1)


def _console() -> Console:
    """The terminal; where there is none, as in a log, lines are long enough for wide tables."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, WIDE))


def _overview(held: list[tuple[str, str, str]]) -> Table:
    """What several targets have shown, in one table."""
    table = Table()
    for heading in ("target", "claims held", "in"):
        table.add_column(heading, overflow="fold")
    for row in held:
        table.add_row(*row)
    return table


def _options(pairs: list[str], hint: str) -> dict[str, int | str]:
    """`KEY=VALUE` of the command line, with numbers as numbers."""
    options: dict[str, int | str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=hint)
        options[key] = int(value) if value.isdecimal() else value
    return options


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="the data set: " + ", ".join(datasets.DATASETS))],
    path: Annotated[
        Path | None,
        typer.Option(help="a folder of your own that holds its files, taken instead of any other source"),
    ] = None,
) -> None:
    """Get a data set ready for use offline: fetched once, checked, and kept."""
    console = _console()
    try:
        summary = datasets.prepare(name, path)
    except ValueError as unknown:
        raise typer.BadParameter(str(unknown), param_hint="NAME") from None
    except DataUnavailableError as missing:
        console.print(str(missing), style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"{name}: {summary}. Kept in {cache_folder() / name}", markup=False, soft_wrap=True)


results = typer.Typer(help="The runs that the docs quote, and the tables made from them.")
app.add_typer(results, name="results")
Folder = Annotated[Path, typer.Option(help="where the runs are kept")]
KEPT = Path("results")


@results.callback(invoke_without_command=True)
def list_results(context: typer.Context, folder: Folder = KEPT) -> None:
    """List what was run: at which scale, when, from which commit, and how many claims held."""
    if context.invoked_subcommand is not None:
        return
    table = Table()
    for heading in evidence.COLUMNS:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("target", "finished (UTC)", "commit"))
    kept = _said(lambda: list(evidence.every(folder)))
    for run in kept:
        table.add_row(*map(escape, run.row))
    _console().print(table if kept else f"{folder} holds no runs", soft_wrap=not kept)


@results.command("add")
def add_results(
    runs: Annotated[
        list[Path], typer.Argument(help="folders that `nupi reproduce` has written, as out/sheet")
    ],
    folder: Folder = KEPT,
) -> None:
    """Keep the summary.json and the results.csv of runs as evidence."""
    for run in runs:
        home = _said(partial(evidence.keep, run, folder))
        typer.echo(f"{run} is kept in {home}")


@results.command("tables")
def write_tables(
    pages: Annotated[list[Path], typer.Argument(help="Markdown files, as docs/*.md")],
    folder: Folder = KEPT,
    *,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 if a table differs")] = False,
) -> None:
    """Write the tables of pages from the runs that were kept."""
    differs = False
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = _said(partial(evidence.written, text, folder))
        if new == text:
            continue
        differs = True
        if not check:
            files.write_text(page, new)
        typer.echo(f"{page}: {'differs from' if check else 'written from'} {folder}")
    if check and differs:
        raise typer.Exit(1)


def _said(function: Callable[[], T]) -> T:
    """What the function returns; what it has against the evidence is said in one line."""
    try:
        return function()
    except evidence.EvidenceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


app.registered_commands += monitor_app.registered_commands


if __name__ == "__main__":
    app()
