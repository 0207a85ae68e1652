"""Run a compiled step: pass its arguments, and divide the settings among threads."""

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

_WIDE = 2**14  # with more bytes of constant matrices, several vectors of settings share each load of them
_GROUPS = 3
_SCRATCH = 2**22  # a group of settings with more bytes does not fit a cache; then torch is as fast
_MATRIX = 2**24  # constant matrices with more bytes do not stay in a cache
_TASKS = 4  # tasks per worker, so that a slow worker does not delay all
_INLINE = 10**5  # fewer operations than this are done before another thread starts


class Kernel:
    """The compiled step of all settings that share a dual rule.

    Args:
        lowered: the step.
        dtype: the dtype of its numbers.
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
            tensors: inputs, then outputs; contiguous, the setting in the last dimension.
            starts: for each tensor, the column of the first setting.
            columns: the number of settings.
            steps: the number of steps.
            pool: the threads besides the caller's.
            workers: the number of all threads.
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

        # The result does not depend on which worker takes which settings, because each has its own lane.
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
    """Compile the step of one setting to a kernel.

    Raises:
        UnsupportedError: if the step has no form in C.
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
    """About how many operations the step of one setting has."""
    count = 0
    for piece in lowered.pieces:
        if isinstance(piece, Product):
            count += piece.rows * piece.inner * piece.columns
        elif isinstance(piece, Reduction):
            count += piece.outer * piece.inner
        else:
            count += piece.size * len(piece.statements)
    return count
