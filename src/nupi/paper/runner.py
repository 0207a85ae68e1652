"""The runner: targets, the scales they run at, and the claims they are judged by.

A target is a function that reproduces a figure or a table of the paper. It is given a `TargetRun`, where it puts
what it makes, and returns claims: what the paper says, what was found here, and whether it holds.

    @target("spectrum", paper="Figure 10", about="eigenvalues against kp", scales=("paper",))
    def spectrum(run: TargetRun) -> list[Claim]: ...
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias, TypeVar, cast, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nupi import files
from nupi.monitor.replay import replay
from nupi.monitor.report import write_report
from nupi.paper import style, targets
from nupi.paper.provenance import provenance
from nupi.solve.progress import track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

    from nupi.monitor.replay import Played

T = TypeVar("T")
Scale: TypeAlias = Literal["smoke", "laptop", "desk", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)  # small to large


@dataclass(frozen=True)
class Claim:
    """One statement of the paper against this run; `paper` and `here` are short and hold the numbers."""

    claim: str
    paper: str
    here: str
    holds: bool

    def __post_init__(self) -> None:
        # A comparison of numpy or torch values gives their own booleans, which JSON does not know; what is no
        # boolean was not compared, and a nan would count as true.
        kind = str(getattr(self.holds, "dtype", type(self.holds).__name__))
        if kind not in ("bool", "torch.bool") or getattr(self.holds, "ndim", 0) != 0:
            raise TypeError(
                f"holds={self.holds!r} of claim {self.claim!r} is no boolean: compare it with something"
            )
        object.__setattr__(self, "holds", bool(self.holds))


@dataclass(frozen=True)
class Target:
    """What can be reproduced: its name, where it stands in the paper, and the scales it knows."""

    name: str
    paper: str
    about: str
    scales: tuple[Scale, ...]
    function: Callable[[TargetRun], list[Claim]]
    options: tuple[str, ...] = ()


class UnknownTargetError(LookupError):
    """A name that no target has; the message suggests the nearest one."""


_registry: dict[str, Target] = {}


def target(
    name: str, *, paper: str, about: str, scales: Sequence[Scale], options: Sequence[str] = ()
) -> Callable[[Callable[[TargetRun], list[Claim]]], Callable[[TargetRun], list[Claim]]]:
    """Register a function as a target.

    Args:
        name: what to call it on the command line.
        paper: where the paper has it.
        about: one line for `nupi list`.
        scales: the scales it has, some of smoke, laptop, desk and paper.
        options: what a user may set, as in `nupi reproduce NAME --set OPTION=VALUE`; the run has them in `options`.
    """
    unknown = [scale for scale in scales if scale not in SCALES]
    if unknown or not scales:
        raise ValueError(f"scales={scales!r} of target {name!r}: choose at least one of {', '.join(SCALES)}")

    def register(function: Callable[[TargetRun], list[Claim]]) -> Callable[[TargetRun], list[Claim]]:
        known = _registry.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ValueError(f"two targets are called {name!r}; the other is in {known.function.__module__}")
        ordered = tuple(scale for scale in SCALES if scale in scales)
        _registry[name] = Target(name, paper, about, ordered, function, tuple(options))
        return function

    return register


def all_targets() -> dict[str, Target]:
    """Every target by name, in the order of `nupi.paper.targets.MODULES`."""
    for module in targets.MODULES:
        importlib.import_module(module)
    return dict(_registry)


def find_target(name: str) -> Target:
    """The target of this name, or an error that suggests the nearest."""
    known = all_targets()
    if name in known:
        return known[name]
    plain = {_plain(other): other for other in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.4)
    hint = f"did you mean {plain[near[0]]!r}?" if near else "there is none like it."
    raise UnknownTargetError(f"no target is called {name!r}: {hint} `nupi list` shows them all.")


def _plain(name: str) -> str:
    """A name without what is easily got wrong in it: case, dashes, underscores and spaces."""
    return name.casefold().translate(str.maketrans("", "", "-_ "))


def nearest_scale(scales: Sequence[Scale], asked: Scale) -> Scale:
    """The smallest scale at least as large as the one asked for, else the largest there is.

    >>> nearest_scale(("smoke", "paper"), "laptop")
    'paper'
    """
    at_least = [scale for scale in SCALES[SCALES.index(asked) :] if scale in scales]
    return at_least[0] if at_least else max(scales, key=SCALES.index)


@dataclass
class TargetRun:
    """One run of a target: where it writes, the scale it really uses, and what it prints on.

    A target that has only tried its setting (a dry run) sets `dry`: then it makes no claim.
    """

    target: str
    scale: Scale
    out: Path
    console: Console = field(default_factory=Console, repr=False)
    tables: list[dict[str, Any]] = field(default_factory=list, repr=False)
    options: dict[str, str] = field(default_factory=dict)
    dry: bool = False

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def jobs(self) -> Path:
        """Where the results of jobs are kept: beside the targets' own folders, since targets share them."""
        return self.out.parent / "runs"

    def progress(self, iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Iterate, with a bar if it lasts longer than a second; may be nested."""
        if self.console.quiet:
            return iter(iterable)
        terminal = self.console.is_terminal
        return track(
            iterable, description, total, stream=cast("TextIO", self.console.file), terminal=terminal
        )

    def figure(self, fig: Figure, name: str = "figure") -> Path:
        """Write `name`.png beside the results and empty the figure; names start with "figure"."""
        if not name.startswith("figure"):
            raise ValueError(f"name={name!r}: a figure's name starts with 'figure', as in 'figure-{name}'")
        path = self.out / f"{name}.png"
        drawn = io.BytesIO()
        for _ in self.progress([name], f"drawing {path.name}"):  # a large one takes seconds
            fig.savefig(drawn, format="png", metadata={"Software": None})
        files.write_bytes(path, drawn.getvalue())
        fig.clear()
        return path

    def report(self, runs: Mapping[str, Played], steps: Sequence[int] | None = None) -> Path:
        """Write report.html: what violations and multipliers did in these runs, and what a monitor finds in them."""
        path = self.out / "report.html"
        write_report(replay(runs, steps, {"target": self.target, "scale": self.scale}), path)
        return path

    def results(self, frame: pd.DataFrame) -> Path:
        """Write results.csv: the numbers behind the figures."""
        path = self.out / "results.csv"
        files.write_text(path, frame.to_csv(index=False))
        return path

    def table(self, title: str, frame: pd.DataFrame) -> None:
        """Print a table and keep it for summary.json."""
        split = json.loads(frame.to_json(orient="split", index=False))
        self.tables.append({"title": title, "columns": split["columns"], "rows": split["data"]})
        shown = Table(title=escape(title), title_justify="left")
        for column in frame.columns:
            shown.add_column(
                escape(str(column)),
                justify="right" if frame[column].dtype.kind in "iufb" else "left",
                overflow="fold",
            )
        for row in frame.itertuples(index=False):
            shown.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
        self.console.print(shown)


def check_writable(folder: Path) -> None:
    """Make the folder and write to it and take it back; an OSError says what is in the way."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def reproduce(
    chosen: Target, asked: Scale, out: Path, console: Console, options: Mapping[str, str] | None = None
) -> list[Claim]:
    """Run one target into `out`/<target>/, write its summary.json, print its claims and return them.

    A run that fails leaves no summary, results or figures of an earlier one behind: what is there, it found.
    """
    scale = nearest_scale(chosen.scales, asked)
    console.rule(escape(f"{chosen.name}: {chosen.about}"), align="left")
    if scale != asked:
        console.print(f"{chosen.name} has no scale {asked!r}: using {scale!r}, the nearest it has.")
    run = TargetRun(chosen.name, scale, out / chosen.name, console, options=dict(options or {}))
    path = run.out / "summary.json"
    for old in (path, run.out / "results.csv", run.out / "report.html", *run.out.glob("figure*.png")):
        old.unlink(missing_ok=True)
    started = time.perf_counter()
    with style.context():
        claims = chosen.function(run)
    if bool(claims) == run.dry:
        raise RuntimeError(
            f"target {chosen.name!r} made a claim after a dry run, which is no result"
            if run.dry
            else f"target {chosen.name!r} made no claim: a reproduction must say what it checked"
        )
    summary: dict[str, Any] = {"target": chosen.name, "scale": scale}
    if run.options:
        summary["options"] = run.options
    if run.dry:
        summary["dry_run"] = True
    summary |= {
        "seconds": round(time.perf_counter() - started, 3),
        "claims": [asdict(claim) for claim in claims],
    }
    summary |= provenance()
    if run.tables:
        summary["tables"] = run.tables
    files.write_text(path, json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    console.print("A dry run: nothing is claimed." if run.dry else claims_table(claims))
    console.print(f"written to {run.out} in {summary['seconds']:.1f} s")
    return claims


def claims_table(claims: Sequence[Claim]) -> Table:
    """The claims as a table: statement, the paper's numbers, ours, and the verdict."""
    shown = Table()
    for heading in ("claim", "paper", "here", "holds"):
        shown.add_column(heading, overflow="fold")
    for claim in claims:
        verdict = "[green]yes[/green]" if claim.holds else "[bold red]NO[/bold red]"
        shown.add_row(escape(claim.claim), escape(claim.paper), escape(claim.here), verdict)
    return shown
