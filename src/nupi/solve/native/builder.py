"""Build a native step: its buffers, constants and pointwise statements."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi.solve.native.operations import UnsupportedError
from nupi.solve.native.pieces import Buffer, Fixed, Read, Schedule, Statement, Tables

if TYPE_CHECKING:
    from nupi.solve.native.pieces import Source

_NUMBER = re.compile(r"all\((-?0x[0-9a-f.]+p[+-][0-9]+)\)")
_PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)  # numbers that are part of formulas, and stay in the C text


@dataclass(frozen=True)
class Lane:
    """A tensor with other values for each setting: a buffer, and the indices of its elements in the buffer."""

    buffer: Buffer
    index: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.index.shape


Tensor: TypeAlias = "Lane | torch.Tensor"


class Builder:
    """Collects the pieces of a step.

    Args:
        dtype: the dtype of all numbers.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.schedule, self.tables = Schedule(), Tables()
        self.constants: list[torch.Tensor] = []
        self._count = 0

    def new(self, shape: Any, *, truth: bool = False, lasting: bool = False) -> Lane:
        """A new buffer, as a tensor of this shape."""
        size = math.prod(shape)
        if size == 0:
            raise UnsupportedError("an empty tensor")
        self._count += 1
        buffer = Buffer(f"b{self._count}", size, truth, lasting)
        return Lane(buffer, torch.arange(size).reshape(tuple(shape)))

    def source(self, value: Tensor, shape: Any) -> Source:
        """A value as an operand, broadcast to a shape."""
        if isinstance(value, Lane):
            return Read(value.buffer, self.tables.access(value.index.expand(tuple(shape))))
        if not (value.is_floating_point() or value.dtype in (torch.bool, torch.int64, torch.int32)):
            raise UnsupportedError(f"a constant of {value.dtype}")
        places = torch.arange(value.numel()).reshape(value.shape).expand(tuple(shape))
        return Fixed(self.keep(value), self.tables.access(places), value.dtype == torch.bool)

    def keep(self, value: torch.Tensor) -> int:
        """Store a constant, and return its number. Equal constants are stored once."""
        flat = value.detach().to(self.dtype).contiguous().reshape(-1).clone()
        for number_, kept in enumerate(self.constants):
            if kept.shape == flat.shape and torch.equal(kept, flat):
                return number_
        self.constants.append(flat)
        return len(self.constants) - 1

    def compute(self, target: Lane, expression: str, operands: list[Tensor]) -> None:
        """Add the statement target[i] = expression of the operands, each broadcast to the target's shape."""
        expression, operands = self._without_numbers(expression, operands)
        shape = (target.index.numel(),)
        aligned = [
            Lane(each.buffer, each.index.expand(target.shape).reshape(-1))
            if isinstance(each, Lane)
            else each.expand(target.shape).reshape(-1)
            if each.numel() > 1
            else each.reshape(())
            for each in operands
        ]
        sources = tuple(self.source(each, shape) for each in aligned)
        into = Read(target.buffer, self.tables.access(target.index.reshape(-1)))
        if any(isinstance(each, Read) and each.buffer is into.buffer and each != into for each in sources):
            # It reads other elements of the target than it writes, so all are computed before one is written.
            apart = self.new(target.shape, truth=target.buffer.truth)
            self.compute(apart, expression, operands)
            self.compute(target, "{0}", [apart])
            return
        self.schedule.compute(shape[0], Statement(into, expression, sources))

    def _without_numbers(self, expression: str, operands: list[Tensor]) -> tuple[str, list[Tensor]]:
        """Turn numbers into constants, so that problems that differ only in numbers share one compiled program."""
        found = list(operands)

        def replace(match: re.Match[str]) -> str:
            value = float.fromhex(match[1])
            if value in _PLAIN:
                return match[0]
            found.append(torch.tensor(value, dtype=self.dtype))
            return f"{{{len(found) - 1}}}"

        return _NUMBER.sub(replace, expression), found
