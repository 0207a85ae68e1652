"""`ascend` of two ranks over gloo, beside one bare all-reduce of the same size.

The difference is the packing and the step itself, which do not depend on the number of ranks.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import nupi
from benchmarks.timing import Row, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

RANKS = 2
SIZES = (10, 1_000, 100_000)


def run() -> list[Row]:
    rows = []
    for size, times in measured(RANKS, SIZES).items():
        ratio = times["ascend"] / times["all-reduce"]
        rows.append(Row(f"{size:,} multipliers: ascend / all-reduce", ratio, "", None, listed(times)))
    return rows


def measured(count: int, sizes: Sequence[int]) -> dict[int, dict[str, float]]:
    """The times of rank 0 out of `count`, by number of multipliers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=work,
                args=(rank, count, sizes, f"file://{folder}/point", theirs if rank == 0 else None),
            )
            for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    if any(rank.exitcode for rank in ranks):  # otherwise one would wait forever for the others
        raise RuntimeError(f"the ranks ended with {[rank.exitcode for rank in ranks]}")
    times: dict[int, dict[str, float]] = ours.recv()
    return times


def work(rank: int, count: int, sizes: Sequence[int], init: str, pipe: Connection | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=count)
    times = {size: best_times(functions(size), rounds=40, calls=10) for size in sizes}
    if pipe is not None:
        pipe.send(times)
    dist.destroy_process_group()


def functions(size: int) -> dict[str, Callable[[], object]]:
    violations = {"c": torch.randn(size)}
    alone, together = (nupi.Lagrangian({"c": nupi.Inequality(size)}, reduce=r) for r in (None, "mean"))
    duals = [nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0) for lagrangian in (alone, together)]
    message = torch.zeros(size, dtype=torch.float64)
    return {
        "all-reduce": partial(dist.all_reduce, message),
        "ascend": partial(together.ascend, duals[1], violations),
        "ascend without reduce": partial(alone.ascend, duals[0], violations),
    }
