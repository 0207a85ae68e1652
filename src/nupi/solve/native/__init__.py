"""Compile the step of a sweep to C, and run it on all cores.

    trace.py        trace the step of one setting into torch operations, without the batch
    lower.py        turn these into pieces: fused loops, reductions, products (pieces.py, builder.py)
    operations.py   pointwise operations in C
    copies.py       operations that move elements
    sums.py         reductions and matrix products
    source.py       the C program of the pieces, one setting in each lane of a vector (prelude.py)
    build.py        call the compiler, cache the libraries
    kernel.py       run the compiled step

If an operation has no form in C, or the machine has no C compiler, torch runs the traced step instead; no error.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

import torch

from nupi.solve.native.kernel import Kernel, compile_step
from nupi.solve.native.operations import UnsupportedError
from nupi.solve.step import evaluate_one, take_step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from nupi.solve.problem import Problem
    from nupi.solve.rules import TorchRule
    from nupi.solve.step import Block, Leaves


COMPILING = 0.3
"""Seconds to trace and compile a kernel. If torch needs less for the whole sweep, it runs the sweep."""
_CALLS = 1e-4  # seconds of a step by torch, whatever its size
_ELEMENT = 1e-8  # seconds of a step by torch for each variable and each constraint


class Native:
    """The kernels of a sweep, each compiled when it is first needed, and the threads that run them.

    Args:
        workers: the number of threads; results do not depend on it.
        steps: the number of steps of each setting.
        recorded: whether some steps will return f and c.
    """

    def __init__(self, workers: int, steps: int, *, recorded: bool = False) -> None:
        self.workers = workers
        self.steps = steps
        self.recorded = recorded
        self.engine = "native"
        """The engine of the last batch, for people to read: "native", or "torch" and why."""
        self._refusal: str | None = None
        self._kernels: dict[tuple[tuple[str, ...], bool], Kernel] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def __enter__(self) -> Native:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def serves(self, problem: Problem, blocks: Sequence[Block], primal: TorchRule, tensors: Leaves) -> bool:
        """Whether every block of a batch has a kernel. If so, all have been compiled."""
        reason = self._refusal or self._reason(problem, blocks, tensors)
        try:
            for block in blocks if reason is None else ():
                self._kernel(problem, block, primal, tensors, seen=False)
                if self.recorded:
                    self._kernel(problem, block, primal, tensors, seen=True)
        except UnsupportedError as error:
            reason = self._refusal = str(error)
        self.engine = "native" if reason is None else f"torch ({reason})"
        return reason is None

    def _reason(self, problem: Problem, blocks: Sequence[Block], tensors: Leaves) -> str | None:
        """Why torch should run a batch, or None if kernels should."""
        if problem.device.type != "cpu" or problem.dtype not in (torch.float32, torch.float64):
            return f"it is {problem.dtype} on {problem.device}"
        elements = problem.size + sum(leaf.numel() for leaf in problem.start.values())
        by_torch = self.steps * sum(_CALLS + _ELEMENT * elements * block.columns for block in blocks)
        missing = sum((_names(block, tensors), False) not in self._kernels for block in blocks)
        return "too short to be worth compiling" if by_torch < COMPILING * missing else None

    def advance(
        self, problem: Problem, blocks: Sequence[Block], primal: TorchRule, tensors: Leaves, steps: int
    ) -> None:
        """Take `count` steps, in place."""
        for block in blocks:
            kernel = self._kernel(problem, block, primal, tensors, seen=False)
            self._run(kernel, block, tensors, [], steps)

    def observe(
        self, problem: Problem, blocks: Sequence[Block], primal: TorchRule, tensors: Leaves
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one step; returns f and c before it."""
        theta = tensors["theta"]
        value, e = theta.new_empty(theta.shape[-1]), torch.empty_like(theta)
        for block in blocks:
            kernel = self._kernel(problem, block, primal, tensors, seen=True)
            self._run(kernel, block, tensors, [value, e], 1)
        return value, e

    def _run(
        self, kernel: Kernel, block: Block, tensors: Leaves, outputs: list[torch.Tensor], steps: int
    ) -> None:
        if self._pool is None and self.workers > 1:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="nupi-sweep")
        names = _names(block, tensors)
        # A block's own tensors have only its settings, the others those of all blocks.
        starts = [0 if name.startswith("dual ") else block.start for name in names]
        given = [tensors[name] for name in names] + outputs
        kernel(given, starts + [block.start] * len(outputs), block.columns, steps, self._pool, self.workers)

    def _kernel(
        self, problem: Problem, block: Block, primal: TorchRule, tensors: Leaves, *, seen: bool
    ) -> Kernel:
        names = _names(block, tensors)
        key = (names, seen)
        scalar = torch.ones((), dtype=problem.dtype, device=problem.device)

        def step(*flat: torch.Tensor) -> list[torch.Tensor]:
            one = dict(zip(names, flat, strict=True))
            return take_step(problem, [block], primal, one, evaluate_one, scalar, first=False, seen=seen)

        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = compile_step(step, [tensors[name] for name in names], problem.dtype)
            return self._kernels[key]


def _names(block: Block, tensors: Leaves) -> tuple[str, ...]:
    """The names of the tensors that a block's step writes or reads."""
    return tuple(
        name for name in tensors if not name.startswith("dual ") or name.startswith(block.name + "/")
    )
