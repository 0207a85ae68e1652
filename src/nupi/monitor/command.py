"""The sub-commands `nupi watch` and `nupi report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from nupi.monitor.disk import read
from nupi.monitor.report import write_report
from nupi.monitor.terminal import picture

app = typer.Typer(
    help="See what multipliers do, from the record that nupi.Monitor(..., path=DIR) writes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the folder given as path to nupi.Monitor")]


@app.command()
def watch(
    folder: Folder,
    every: Annotated[float, typer.Option(help="seconds between two readings of the record", min=0.1)] = 2.0,
    *,
    once: Annotated[bool, typer.Option("--once", help="show the record once, and end")] = False,
) -> None:
    """Show a run while it trains: sparklines, multipliers, gains, findings. Ctrl-C ends it."""
    console = Console(highlight=False)
    try:
        shown = picture(read(folder), *_room(console))
    except (OSError, ValueError) as error:
        typer.echo(f"nupi watch: {error}", err=True)
        raise typer.Exit(2) from None
    if once:
        console.print(shown)
        return
    try:
        with Live(shown, console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                try:
                    live.update(picture(read(folder), *_room(console)), refresh=True)
                except (OSError, ValueError):
                    continue  # the file is just being replaced; the next reading will find it
    except KeyboardInterrupt:  # Ctrl-C is the normal way to end, also while the screen is drawn
        return


@app.command()
def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="the file to write; by default report.html in DIR")] = None,
) -> None:
    """Write the HTML report of a record, also of a run that is still going on or was killed."""
    try:
        record = read(folder)
        path = out or (folder if folder.is_dir() else folder.parent) / "report.html"
        write_report(record, path)
    except (OSError, ValueError) as error:
        typer.echo(f"nupi report: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: {record.last_step:,} steps")


def _room(console: Console) -> tuple[int, int]:
    return max(4, console.size.height - 10), console.size.width
