"""A native step at work: its arguments, and the threads that it is spread over."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from nupi.solve.native.build import load
from nupi.solve.native.lower import lower
from nupi.solve.native.operations import UnsupportedError
from nupi.solve.native.pieces import Product, Reduction
from nupi.solve.native.source import program
from nupi.solve.native.trace import trace_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from nupi.solve.native.lower import Lowered

_WIDE = 2**14  # bytes of constant matrices from which several vectors of settings share each load of them
_GROUPS = 3
_SCRATCH = 2**22  # bytes of a group of settings beyond which they do not fit a cache; torch is as fast then
_MATRIX = 2**24  # bytes of constant matrices beyond which they do not stay in a cache either
_TASKS = 4  # a worker, so that one that is held up does not hold up all
_INLINE = 10**5  # operations that are over before another thread has woken up


class Kernel:
    """The compiled step of all settings that share a dual rule.

    Args:
        lowered: the step.
        dtype: of its numbers.
    """

    def __init__(self, lowered: Lowered, dtype: torch.dtype) -> None:
        double = dtype == torch.float64
        matrices = {
            p.constant: p.rows * p.inner * dtype.itemsize for p in lowered.pieces if isinstance(p, Product)
        }
        if sum(matrices.values()) > _MATRIX:
            raise UnsupportedError("its matrices are too large for a cache")
        self.groups = _GROUPS if sum(matrices.values()) > _WIDE else 1
        self.source = program(
            lowered.pieces, lowered.inputs, lowered.outputs, double=double, groups=self.groups
        )
        self.library = load(self.source)
        self.width = int(self.library.width())
        self.scratch = int(self.library.scratch())
        if self.scratch > _SCRATCH:
            raise UnsupportedError("its state is too large for a cache")
        self.sizes = [buffer.size for buffer in lowered.outputs]
        self.dtype = dtype
        self.work = _work(lowered)
        self._constants, self._tables = lowered.constants, lowered.tables  # kept alive: C has their addresses
        self._k, self._t = _addresses(lowered.constants), _addresses(lowered.tables)

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        starts: Sequence[int],
        columns: int,
        steps: int,
        pool: ThreadPoolExecutor | None,
        workers: int,
    ) -> None:
        """Take some steps.

        Args:
            tensors: inputs, then outputs, the setting in the last dimension; contiguous.
            starts: the column of each tensor that the first setting is in.
            columns: how many settings there are.
            steps: how many steps.
            pool: for other workers than the caller.
            workers: how many there are.
        """
        size = self.dtype.itemsize
        addresses = [t.data_ptr() + start * size for t, start in zip(tensors, starts, strict=True)]
        x = (ctypes.c_void_p * len(tensors))(*addresses)
        strides = (ctypes.c_long * len(tensors))(*(tensor.shape[-1] for tensor in tensors))

        def run(begin: int, end: int) -> None:
            memory = ctypes.create_string_buffer(self.scratch + 64)
            aligned = ctypes.c_void_p(-(-ctypes.addressof(memory) // 64) * 64)
            self.library.run(
                *(ctypes.c_long(number) for number in (begin, end, steps)),
                aligned,
                x,
                strides,
                self._k,
                self._t,
            )

        # Which worker takes which settings changes nothing: settings never meet, and each has its own lane.
        blocks = -(-columns // self.width)
        if pool is None or workers == 1 or self.work * columns * steps < _INLINE:
            run(0, columns)
            return
        tasks = min(blocks, workers * _TASKS)
        ends = [min(columns, self.width * (blocks * task // tasks)) for task in range(tasks + 1)]
        for done in [pool.submit(run, *span) for span in zip(ends, ends[1:])]:  # noqa: B905, RUF007
            done.result()


def compile_step(
    step: Callable[..., list[torch.Tensor]], tensors: Sequence[torch.Tensor], dtype: torch.dtype
) -> Kernel:
    """The kernel of a step of one setting.

    Raises:
        UnsupportedError: if it has none.
    """
    with torch.device("cpu"), torch.no_grad():
        try:
            lowered = lower(trace_one(step, tensors, simplify=False), dtype)
        except UnsupportedError:
            lowered = lower(trace_one(step, tensors, simplify=True), dtype)
        return Kernel(lowered, dtype)


def _addresses(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(tensor.data_ptr() for tensor in tensors))


def _work(lowered: Lowered) -> int:
    """About how many operations one setting's step is."""
    count = 0
    for piece in lowered.pieces:
        if isinstance(piece, Product):
            count += piece.rows * piece.inner * piece.columns
        elif isinstance(piece, Reduction):
            count += piece.outer * piece.inner
        else:
            count += piece.size * len(piece.statements)
    return count
