"""Count the functions of nupi that one `ascend` calls, and their files.

Three cases: a tensor, an `Indexed` violation, and a tensor on each of two ranks. The first step, which makes state, is
left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
import torch.multiprocessing

import nupi
from benchmarks.timing import Row, at_most

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = Path(nupi.__file__).parent

Walk = list[tuple[str, str]]
"""File and function of every call, in order."""


def walked(lagrangian: nupi.Lagrangian, violations: dict[str, Any]) -> Walk:
    """The calls of one later step of nuPI on these violations."""
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    for _ in range(2):
        lagrangian.ascend(dual, violations)
    calls: Walk = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and _PACKAGE in path.parents:
            calls.append(
                (str(path.relative_to(_PACKAGE)), getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
            )

    sys.setprofile(note)
    try:
        lagrangian.ascend(dual, violations)
    finally:
        sys.setprofile(None)
    return calls


def dense() -> Walk:
    """A tensor, in one process."""
    return walked(nupi.Lagrangian({"c": nupi.Inequality(3)}), {"c": torch.ones(3)})


def indexed() -> Walk:
    """Some rows, in one process."""
    rows = nupi.Indexed(torch.ones(2), torch.tensor([0, 2]))
    return walked(nupi.Lagrangian({"c": nupi.Inequality(3)}), {"c": rows})


def _rank(rank: int, file: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(3)}, reduce="mean")
    calls = walked(lagrangian, {"c": torch.ones(3)})
    if rank == 0:
        Path(file + ".walk").write_text("\n".join("\t".join(call) for call in calls), encoding="utf-8")
    torch.distributed.destroy_process_group()


def two_ranks() -> Walk:
    """A tensor on each of two ranks; the walk of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "meet")
        torch.multiprocessing.spawn(_rank, (file,), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
        lines = Path(file + ".walk").read_text(encoding="utf-8").splitlines()
    walk = []
    for line in lines:
        path, function = line.split("\t")
        walk.append((path, function))
    return walk


# Files that one `ascend` passed in version 0.1.
BEFORE = {"dense": 9, "indexed": 10, "two ranks": 15}


def run() -> list[Row]:
    """The number of files in a step, now and in version 0.1."""
    rows = []
    for name, walk in (("dense", dense()), ("indexed", indexed()), ("two ranks", two_ranks())):
        files = len({file for file, _ in walk})
        rows.append(
            at_most(
                f"files of {name} / version 0.1",
                files / BEFORE[name],
                0.99,
                f"{files} files, {len({*walk})} functions",
            )
        )
    return rows


def main() -> None:
    """Print the three walks."""
    for name, walk in (("dense", dense()), ("indexed", indexed()), ("two ranks", two_ranks())):
        print(f"\n{name}: {len(walk)} calls in {len({file for file, _ in walk})} files")
        for file, function in walk:
            print(f"  {file:32} {function}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
