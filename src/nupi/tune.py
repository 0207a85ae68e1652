"""Searches over whole runs.

The more kp, the more damping: where a constraint that should end on its boundary ends strictly inside it, kp was
too small, and where it ends violated, kp was too large. So the final violation rises with kp, and the kp that lands
on the boundary can be found by bisection instead of on a grid (section 5.3 of the paper).

    found = nupi.tune.bisect_kp(train, 0.0, 40.0, tolerance=0.005, journal=Path("kp.json"))
    found.kp, found.violation, found.status, found.runs
"""

from __future__ import annotations

import json
import math
import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Status: TypeAlias = Literal["converged", "no sign change", "out of runs"]


@dataclass(frozen=True)
class Run:
    """One run: its kp, and the signed violation it ended with (positive where the constraint is violated)."""

    kp: float
    violation: float


@dataclass(frozen=True)
class Bisection:
    """What a search found.

    Args:
        kp: of the run that ended closest to the boundary.
        violation: that it ended with.
        status: "converged" within the tolerance; "no sign change" where no two kp were found with violations
            of both signs, so that there was nothing to bisect; "out of runs".
        bracket: where the search stood: unless there was no sign change, the violation changes its sign in it.
        runs: every run that was made or read from the journal, in the order the search asked for them.
    """

    kp: float
    violation: float
    status: Status
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
    below `low` to try. Then the bracket is halved. Any run that ends within the tolerance ends the search.

    Args:
        run: makes a whole run with this kp and returns its final signed violation.
        low: the smallest kp to consider; 0 is gradient ascent.
        high: a kp that is likely too large.
        tolerance: how close to 0 the violation must come.
        max_runs: how many runs the search may ask for, those in the journal included.
        journal: a file that keeps every run as soon as it is done. A search that was killed, or that is asked
            for more, reads the runs that are there and makes the others; delete it when `run` changes. Searches
            that share it keep each other's runs.

    Example:
        >>> found = bisect_kp(lambda kp: kp / 40 - 0.3, 0.0, 40.0, tolerance=0.02)
        >>> found.kp, found.status, [each.kp for each in found.runs]
        (12.5, 'converged', [0.0, 40.0, 20.0, 10.0, 15.0, 12.5])
    """
    low, high = float(low), float(high)  # numpy's and torch's numbers would not fit the journal
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low={low!r} and high={high!r} must be finite, low below high")
    if not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance!r} must be positive and finite: runs are not exact")
    if operator.index(max_runs) < 2:
        raise ValueError(f"max_runs={max_runs!r} must be at least 2: both ends are run first")
    runs = _Runs(run, None if journal is None else Path(journal))

    def found(status: Status) -> Bisection:
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


class _Runs:
    """The runs a search has asked for, and the journal that keeps them."""

    def __init__(self, run: Callable[[float], float], journal: Path | None) -> None:
        self._run, self._journal = run, journal
        self._known = {} if journal is None else _read(journal)
        if journal is not None:
            _write(
                journal, self._known
            )  # a place that cannot be written to is found out before a run, not after
        self.made: list[Run] = []

    def violation(self, kp: float) -> float:
        """The violation of the run with this kp, made now unless the journal has it."""
        if kp not in self._known:
            returned = self._run(kp)
            try:
                violation = float(returned)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"run(kp={kp!r}) returned {returned!r}, which is no number: it must return its final violation"
                ) from error
            if not math.isfinite(violation):
                raise ValueError(
                    f"run(kp={kp!r}) returned {violation}, which has no place in a bisection; runs that were "
                    "made before are in the journal, if there is one. Try a narrower bracket"
                )
            self._known[kp] = violation
            if self._journal is not None:
                _write(self._journal, self._known)
        self.made.append(Run(kp, self._known[kp]))
        return self._known[kp]


def _read(journal: Path) -> dict[float, float]:
    try:
        text = journal.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        known = {float(each["kp"]): float(each["violation"]) for each in json.loads(text)}
        if not all(map(math.isfinite, (*known, *known.values()))):
            raise ValueError("it holds numbers that are not finite")  # noqa: TRY301
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"journal={str(journal)!r} is not a journal of bisect_kp ({error}); give another path"
        ) from error
    return known


def _write(journal: Path, known: dict[float, float]) -> None:
    """Replace the journal in one step, so that a kill leaves the old one or the new one."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    known = _read(journal) | known  # what another search has written since
    draft = journal.with_name(f".{journal.name}.{os.getpid()}")
    runs = [{"kp": kp, "violation": violation} for kp, violation in known.items()]
    draft.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    draft.replace(journal)
