"""`python -m benchmarks.growth`: how time and memory grow with constraints, groups, ranks and settings.

It writes results/benchmarks/growth.csv and draws docs/figures/growth.png from it. Every curve is compared with a limit:
a copy of as many bytes, torch's own SGD over as many tensors, one all-reduce, or a straight line.
"""

from __future__ import annotations

import csv
import ctypes
import io
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

import nupi
from benchmarks import distributed
from benchmarks.page import RESULTS
from benchmarks.sweep_rivals import many, with_nupi
from benchmarks.timing import best_times
from nupi import files
from nupi.paper.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE = RESULTS.with_name("growth.csv")
BATCH = 256
RANKS, RANK_SIZE = (1, 2, 4), 1_000
GROUP_SIZE = 10
STEPS = 20  # steps of a sweep


@dataclass(frozen=True)
class Point:
    """One measured value of one curve; `limit` marks the curve with which the others are compared."""

    against: str
    quantity: str
    curve: str
    count: int
    value: float
    limit: bool = False


def constraints(counts: tuple[int, ...]) -> Iterator[Point]:
    """An ascend of `count` constraints, with all violations and with those of a batch."""
    torch.set_num_threads(1)
    for count in counts:
        rows = min(BATCH, count)
        batch = nupi.Indexed(torch.randn(rows), torch.randint(count, (rows,)))
        dense, held = _ascend({"c": nupi.Inequality(count)}, {"c": torch.randn(count)})
        indexed, _ = _ascend({"c": nupi.Inequality(count)}, {"c": batch})
        source, target = torch.randn(5 * count // 2), torch.empty(5 * count // 2)
        times = best_times(
            {
                "copy of as many bytes": partial(target.copy_, source),
                "ascend, all violations": dense,
                f"ascend, Indexed (at most {BATCH} rows)": indexed,
            },
            rounds=7,
            calls=max(1, min(100, 1_000_000 // count)),
        )
        for curve, seconds in times.items():
            yield Point("constraints", "seconds", curve, count, seconds, curve.startswith("copy"))
        yield Point("constraints", "bytes", "the multipliers alone", count, 4 * count, True)
        yield Point("constraints", "bytes", "held: multipliers and state", count, held())
        yield Point("constraints", "bytes", "more during an ascend", count, peak_allocated(dense))
        yield Point("constraints", "bytes", "more, Indexed", count, peak_allocated(indexed))


def groups(counts: tuple[int, ...]) -> Iterator[Point]:
    """An ascend of many groups of ten constraints."""
    torch.set_num_threads(1)
    for count in counts:
        names = [f"group{i}" for i in range(count)]
        violations = {name: torch.randn(GROUP_SIZE) for name in names}
        ascend, _ = _ascend({name: nupi.Inequality(GROUP_SIZE) for name in names}, violations)
        params = [torch.zeros(GROUP_SIZE) for _ in names]
        for param, violation in zip(params, violations.values(), strict=True):
            param.grad = violation
        sgd = torch.optim.SGD(params, lr=0.1, maximize=True, foreach=True)
        steps: dict[str, Callable[[], object]] = {"SGD(foreach=True).step": sgd.step, "ascend": ascend}
        times = best_times(steps, rounds=7, calls=max(1, 300 // count))
        for curve, seconds in times.items():
            yield Point("groups", "seconds", curve, count, seconds, curve.startswith("SGD"))


def ranks(counts: tuple[int, ...]) -> Iterator[Point]:
    """An ascend of 1,000 constraints whose violations are averaged over several processes."""
    for count in counts:
        times = distributed.measured(count, [RANK_SIZE])[RANK_SIZE]
        for curve, seconds in times.items():
            yield Point("ranks", "seconds", curve, count, seconds, curve == "all-reduce")


def settings(counts: tuple[int, ...]) -> Iterator[Point]:
    """A sweep of the paper's SVM over many values of `ki`."""
    grid = replace(many(), nu=(0.0,), kp=(1.0,), steps=STEPS)
    points = []
    for count in counts:
        sweep = partial(with_nupi, replace(grid, ki=torch.logspace(-5, -3, count).tolist()))
        seconds = best_times({"sweep": sweep}, rounds=2, calls=1)["sweep"]
        points.append(Point("settings", "seconds", f"sweep, {STEPS} steps", count, seconds))
        memory = peak_resident(sweep)
        if memory is not None:
            points.append(Point("settings", "bytes", "more during a sweep", count, memory))
    last = {point.quantity: point for point in points}
    for point in points:
        most = last[point.quantity]
        yield point
        line = most.value * point.count / most.count
        yield replace(point, curve="linear", value=line, limit=True)


def _ascend(
    kinds: dict[str, Any], violations: dict[str, Any]
) -> tuple[Callable[[], None], Callable[[], int]]:
    """The time of an ascend, and the bytes that are kept for the next one."""
    lagrangian = nupi.Lagrangian(kinds)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)

    def held() -> int:
        tensors: list[torch.Tensor] = list(lagrangian.parameters())
        for state in dual.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)

    return partial(lagrangian.ascend, dual, violations), held


def peak_allocated(function: Callable[[], object]) -> int:
    """The largest number of bytes of tensors that a call allocates at once."""
    function()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        function()
    now = most = 0
    for event in sorted(log.events(), key=lambda event: event.time_range.start):
        now += event.self_cpu_memory_usage
        most = max(most, now)
    return most


def peak_resident(function: Callable[[], object]) -> int | None:
    """The largest growth of the memory of the process during a call, in bytes; None if the system does not say."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None
    # Return freed memory to the system, otherwise the call would reuse it unseen.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")  # resets the peak
    before = _kilobytes(status, "VmRSS")
    function()
    return 1024 * max(0, _kilobytes(status, "VmHWM") - before)


def _kilobytes(status: Path, entry: str) -> int:
    found = re.search(rf"{entry}:\s+(\d+)", status.read_text())
    assert found is not None
    return int(found[1])


def save(points: list[Point]) -> None:
    origin = provenance()
    where = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "date": origin["finished"],
        "commit": origin["commit"],
    }
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(Point)] + [*where], lineterminator="\n")
    writer.writeheader()
    for point in points:
        writer.writerow(asdict(point) | {"value": f"{point.value:.4g}", "limit": int(point.limit)} | where)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(TABLE, buffer.getvalue())


def powers(largest: int) -> tuple[int, ...]:
    return tuple(10**i for i in range(largest + 1))


def main() -> None:
    from benchmarks.growth_figure import draw

    threads = torch.get_num_threads()
    points = [*constraints(powers(7)), *groups(powers(4)), *ranks(RANKS)]
    torch.set_num_threads(threads)
    points += settings(powers(5))
    save(points)
    draw()


if __name__ == "__main__":
    main()
