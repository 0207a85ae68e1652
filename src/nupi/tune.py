"""Searches over whole runs: the paper's two ways to tune nuPI.

A larger kp gives more damping. If a constraint that should end on its boundary ends strictly inside it, kp was too
small. If it ends violated, kp was too large. So the final violation rises with kp, and bisection can find the kp that
ends on the boundary, without a grid (section 5.3 of the paper).

    found = nupi.tune.bisect_kp(train, 0.0, 40.0, tolerance=0.005, journal=Path("kp.json"))
    found.kp, found.violation, found.status, found.runs

If the final violation does not rise with kp, take a kp that is large enough to have an effect, and try values of ki
around a step size that works for gradient ascent (section 4.3). A large kp makes the choice of ki easier.

    found = nupi.tune.grid_ki(train, ki=0.03, kp=5.0, journal=Path("ki.json"))
    found.ki, found.score, found.runs
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from nupi import files
from nupi.optim.checks import number, whole

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bisection", "GridRun", "GridSearch", "Run", "bisect_kp", "grid_ki"]

SearchStatus: TypeAlias = Literal["converged", "no sign change", "out of runs"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Run:
    """One run: its kp, and the signed violation it ended with (positive if the constraint is violated).

    Example:
        >>> bisect_kp(lambda kp: kp / 40 - 0.3, 0.0, 40.0, tolerance=0.02).runs[0]
        Run(kp=0.0, violation=-0.3)
    """

    kp: float
    violation: float


@dataclass(frozen=True)
class Bisection:
    """What a search found.

    Args:
        kp: the kp of the run that ended closest to the boundary.
        violation: the final violation of that run.
        status: "converged" within the tolerance; "no sign change" if all violations have the same sign, so that
            there is nothing to bisect; "out of runs".
        bracket: the last interval of the search. The violation changes its sign in it, unless there was no sign change.
        runs: every run that was made or read from the journal, in the order of the search.

    Example:
        >>> found = bisect_kp(lambda kp: kp / 40 - 0.3, 0.0, 40.0, tolerance=0.02)
        >>> found.status, found.kp, found.bracket
        ('converged', 12.5, (10.0, 15.0))
    """

    kp: float
    violation: float
    status: SearchStatus
    bracket: tuple[float, float]
    runs: tuple[Run, ...]


def bisect_kp(
    run: Callable[[float], float],
    low: float,
    high: float,
    *,
    tolerance: float,
    max_runs: int = 8,
    journal: Path | str | None = None,
) -> Bisection:
    """Find the kp with which a run ends on the boundary of its constraint.

    Both ends are run first. While their violations are both negative (kp is too small) the bracket moves up and
    doubles its width, as long as that helps by more than the tolerance; if both are positive there is nothing
    below `low` to try. Then the bracket is halved: kp = (low + high) / 2. Any run with |violation| <= tolerance ends
    the search.

    Args:
        run: makes a whole run with this kp and returns its final signed violation.
        low: the smallest kp to consider; 0 is gradient ascent.
        high: a kp that is likely too large.
        tolerance: how close to 0 the violation must come.
        max_runs: how many runs the search may ask for, those in the journal included.
        journal: a file that keeps every run as soon as it is done. The next search reads these runs and makes only
            the others, for example after a kill or with more `max_runs`. Delete the file when `run` changes. Several
            searches may share it.

    Example:
        >>> found = bisect_kp(lambda kp: kp / 40 - 0.3, 0.0, 40.0, tolerance=0.02)
        >>> found.kp, found.status, [each.kp for each in found.runs]
        (12.5, 'converged', [0.0, 40.0, 20.0, 10.0, 15.0, 12.5])
    """
    # Plain floats: the journal cannot hold numbers of numpy or torch.
    low, high = number("low", low), number("high", high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low={low!r} and high={high!r} must be finite, low below high")
    if not 0 < number("tolerance", tolerance) < math.inf:
        raise ValueError(f"tolerance={tolerance!r} must be positive and finite: runs are not exact")
    max_runs = whole("max_runs", max_runs, 2)  # both ends are run first
    runs = _Runs(run, None if journal is None else Path(journal))

    def found(status: SearchStatus) -> Bisection:
        best = min(runs.made, key=lambda each: abs(each.violation))
        return Bisection(best.kp, best.violation, status, (low, high), tuple(runs.made))

    at_low = runs.violation(low)
    if abs(at_low) <= tolerance:
        return found("converged")
    at_high = runs.violation(high)
    while abs(at_high) > tolerance and (at_low < 0) == (at_high < 0):
        helps = at_high > at_low + tolerance
        if at_high > 0 or not helps or len(runs.made) >= max_runs:
            return found("no sign change")
        low, high, at_low = high, high + 2 * (high - low), at_high
        at_high = runs.violation(high)
    if abs(at_high) <= tolerance:
        return found("converged")
    while len(runs.made) < max_runs:
        middle = (low + high) / 2
        at_middle = runs.violation(middle)
        if abs(at_middle) <= tolerance:
            return found("converged")
        if (at_middle < 0) == (at_low < 0):
            low = middle
        else:
            high = middle
    return found("out of runs")


@dataclass(frozen=True)
class GridRun:
    """One run of a grid: its gains, and its score (smaller is better; infinite if it diverged).

    Example:
        >>> grid_ki(lambda ki, kp: abs(ki - 0.1), ki=0.1, kp=5.0, points=3).runs[1]
        GridRun(ki=0.1, kp=5.0, score=0.0)
    """

    ki: float
    kp: float
    score: float


@dataclass(frozen=True)
class GridSearch:
    """What a grid over ki found.

    Args:
        ki: of the run with the smallest score.
        kp: the kp of all runs.
        score: the smallest score.
        at_edge: whether this ki is the smallest or the largest of the grid, so that a better one may be outside.
        runs: every run that was made or read from the journal, from the smallest ki to the largest.

    Example:
        >>> found = grid_ki(lambda ki, kp: abs(ki - 0.1), ki=0.1, kp=5.0, points=3)
        >>> found.ki, found.score, found.at_edge
        (0.1, 0.0, False)
    """

    ki: float
    kp: float
    score: float
    at_edge: bool
    runs: tuple[GridRun, ...]


def grid_ki(
    run: Callable[[float, float], float],
    ki: float,
    kp: float,
    *,
    factor: float = 10.0,
    points: int = 5,
    journal: Path | str | None = None,
) -> GridSearch:
    """Find the best ki for a large kp, on a grid around a step size that works for gradient ascent.

    With n points, the grid is ki factor^(2 i / (n - 1) - 1) for i = 0 ... n - 1.

    Args:
        run: makes a whole run with these gains, `run(ki, kp)`, and returns its score, the smaller the better: the
            largest violation at the end, or the loss of a feasible model. A run that diverged may return inf or nan.
        ki: a step size that works for gradient ascent; the middle of the grid.
        kp: large enough to have an effect: `kp` times a typical change of the violation in a step should be well above
            `ki` times the violation.
        factor: the grid goes from ki / factor to ki * factor, evenly on a logarithmic scale.
        points: how many values of ki.
        journal: as for `bisect_kp`, but in another file.

    Example:
        >>> found = grid_ki(lambda ki, kp: abs(ki - 0.1) + 0.0 * kp, ki=0.03, kp=5.0)
        >>> round(found.ki, 4), found.at_edge, len(found.runs)
        (0.0949, False, 5)
    """
    ki, kp, factor = number("ki", ki), number("kp", kp), number("factor", factor)
    if not 0 < ki < math.inf:
        raise ValueError(f"ki={ki!r} must be positive and finite: a step size that works for gradient ascent")
    if not math.isfinite(kp):
        raise ValueError(f"kp={kp!r} must be finite")
    if not 1 < factor < math.inf:
        raise ValueError(
            f"factor={factor!r} must be larger than 1 and finite: the grid is ki / factor .. ki * factor"
        )
    points = whole("points", points, 2)
    kis = [ki * factor ** (2 * i / (points - 1) - 1) for i in range(points)]
    if not 0 < kis[0] <= kis[-1] < math.inf:
        raise ValueError(f"a grid from {kis[0]:g} to {kis[-1]:g} is too wide; give a smaller factor")
    notes = _Journal(None if journal is None else Path(journal), ("ki", "kp"), "score")
    made = [GridRun(each, kp, notes.look_up((each, kp), partial(run, each, kp))) for each in kis]
    best = min(made, key=lambda each: each.score)
    if best.score == math.inf:
        raise ValueError(
            f"no run of the grid from ki={kis[0]:g} to {kis[-1]:g} at kp={kp:g} ended with a finite score; "
            "try a smaller ki or another kp"
        )
    return GridSearch(best.ki, kp, best.score, best.ki in (kis[0], kis[-1]), tuple(made))


class _Runs:
    """The runs a bisection has asked for."""

    def __init__(self, run: Callable[[float], float], journal: Path | None) -> None:
        self._run, self._notes = run, _Journal(journal, ("kp",), "violation")
        self.made: list[Run] = []

    def violation(self, kp: float) -> float:
        """The violation of the run with this kp; the run is made now unless the journal has it."""
        violation = self._notes.look_up((kp,), lambda: self._checked(kp))
        self.made.append(Run(kp, violation))
        return violation

    def _checked(self, kp: float) -> float:
        violation = _number(self._run(kp), f"run(kp={kp!r})", "its final violation")
        if not math.isfinite(violation):
            raise ValueError(
                f"run(kp={kp!r}) returned {violation}, which bisection cannot use; earlier runs "
                "are in the journal, if there is one. Try a narrower bracket"
            )
        return violation


def _number(returned: object, call: str, what: str) -> float:
    try:
        return float(returned)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{call} returned {returned!r}, which is no number: it must return {what}") from error


class _Journal:
    """A file that keeps every run as soon as it is done: a list with the gains and the result of each.

    Args:
        path: of the file, or None to keep nothing beyond this search.
        gains: the names of the gains.
        result: the name of the result; a result that is not finite is kept as null.
    """

    def __init__(self, path: Path | None, gains: tuple[str, ...], result: str) -> None:
        self._path, self._gains, self._result = path, gains, result
        self._known: dict[tuple[float, ...], float] = {}
        if path is not None:
            self._known = self._read()
            self._write()  # finds out before a run, not after it, that the path cannot be written to

    def look_up(self, gains: tuple[float, ...], make: Callable[[], object]) -> float:
        """The result of the run with these gains; the run is made now unless the journal has it."""
        if gains not in self._known:
            call = (
                f"run({', '.join(f'{name}={gain!r}' for name, gain in zip(self._gains, gains, strict=True))})"
            )
            found = _number(make(), call, f"its {self._result}")
            self._known[gains] = found if math.isfinite(found) else math.inf
            if self._path is not None:
                self._write()
        return self._known[gains]

    def _read(self) -> dict[tuple[float, ...], float]:
        assert self._path is not None
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        known = {}
        try:
            for each in json.loads(text):
                if each.keys() != {*self._gains, self._result}:
                    raise ValueError(f"it has {sorted(each)} and not {sorted((*self._gains, self._result))}")  # noqa: TRY301
                gains = tuple(float(each[name]) for name in self._gains)
                result = each[self._result]
                if not all(map(math.isfinite, (*gains, 0.0 if result is None else float(result)))):
                    raise ValueError("it holds numbers that are not finite")  # noqa: TRY301
                known[gains] = math.inf if result is None else float(result)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"journal={str(self._path)!r} is not a journal of this search ({error}); give another path"
            ) from error
        return known

    def _write(self) -> None:
        """Replace the journal in one step, so that a kill leaves the old one or the new one."""
        assert self._path is not None
        self._known = self._read() | self._known  # what another search has written since
        runs = [
            {
                **dict(zip(self._gains, gains, strict=True)),
                self._result: found if math.isfinite(found) else None,
            }
            for gains, found in self._known.items()
        ]
        files.write_text(self._path, json.dumps(runs, indent=1) + "\n")
