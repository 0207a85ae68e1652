"""Timing in turns, so that a noisy machine disturbs all competitors equally; and the row that a benchmark reports."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Row:
    """One comparison: its name, the measured ratio, and the bound on it."""

    what: str
    ratio: float
    bound: str
    met: bool | None  # None: shown for information
    note: str = ""


def at_most(what: str, ratio: float, bound: float, note: str = "") -> Row:
    return Row(what, ratio, f"<= {bound:g}", ratio <= bound, note)


def at_least(what: str, ratio: float, bound: float, note: str = "") -> Row:
    return Row(what, ratio, f">= {bound:g}", ratio >= bound, note)


def best_times(
    functions: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, float]:
    """The best time per call of each function, in seconds: `rounds` turns of `calls` calls, one after another."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (clock() - start) / calls)
    return best


def seconds(time: float) -> str:
    return f"{time * 1e6:.1f} us" if time < 1e-3 else f"{time * 1e3:.2f} ms"


def listed(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds(time)}" for name, time in times.items())
