"""The pieces of a native step: fused loops, reductions, and products with a constant matrix.

A value of the step is a buffer and an access. The buffer has one vector of settings for each element. The access says
which element of the buffer is the i-th of the value. A view of a tensor is another access to the same buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import torch


@dataclass(eq=False)
class Buffer:
    """The elements of a tensor.

    Args:
        name: its name in C.
        size: the number of elements.
        truth: whether they are truth values.
        lasting: whether it is kept from step to step: an input or an output.
    """

    name: str
    size: int
    truth: bool = False
    lasting: bool = False


@dataclass(frozen=True)
class Access:
    """Maps a place of a value to an element of its buffer: start + strides . place, or an entry of a table."""

    start: int
    strides: tuple[int, ...]
    table: int | None = None
    shape: tuple[int, ...] = ()

    def at(self, *place: str) -> str:
        """The C expression of the element's index."""
        if self.table is not None:
            flat = place[0]
            for size, part in zip(self.shape[1:], place[1:], strict=True):
                flat = f"({flat}) * {size} + {part}"
            return f"t[{self.table}][{flat}]"
        terms = [str(self.start)] if self.start or not any(self.strides) else []
        for stride, part in zip(self.strides, place, strict=True):
            if stride:
                terms.append(f"({part})" if stride == 1 else f"{stride} * ({part})")
        return " + ".join(terms)

    @property
    def fixed(self) -> bool:
        """Whether every place has the same element."""
        return self.table is None and not any(self.strides)


class Tables:
    """Tables of element indices that follow no formula; equal tables are stored once."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self._numbers: dict[bytes, int] = {}

    def access(self, index: torch.Tensor) -> Access:
        """The access that gives the element `index[place]` at every place."""
        shape = tuple(index.shape)
        flat = index.reshape(-1)
        start = int(flat[0])
        strides = []
        for dimension, size in enumerate(shape):
            near = index.narrow(dimension, min(1, size - 1), 1).reshape(-1)[0]
            strides.append(int(near) - start)
        formula = torch.full(shape, start)
        for dimension, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            ends = [1] * len(shape)
            ends[dimension] = size
            formula = formula + stride * torch.arange(size).reshape(ends)
        if torch.equal(formula, index):
            return Access(start, tuple(strides))
        table = flat.to(torch.int32).contiguous()
        key = table.numpy().tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.kept)
            self.kept.append(table)
        return Access(0, (), self._numbers[key], shape)


@dataclass(frozen=True)
class Read:
    """Elements of a buffer, as an operand."""

    buffer: Buffer
    access: Access


@dataclass(frozen=True)
class Fixed:
    """A constant tensor, as an operand: the same for all settings and steps."""

    number: int
    access: Access
    truth: bool = False


Source: TypeAlias = "Read | Fixed"


@dataclass(frozen=True)
class Statement:
    """One pointwise operation: target[i] = expression of operands[0][i], operands[1][i], ..., named {0}, {1}, ..."""

    target: Read
    expression: str
    operands: tuple[Source, ...]

    @property
    def reads(self) -> set[Buffer]:
        """The buffers that it reads."""
        return {operand.buffer for operand in self.operands if isinstance(operand, Read)}


@dataclass(eq=False)
class Loop:
    """Pointwise operations over the same number of elements, in one pass.

    Args:
        size: the number of elements.
        statements: the operations in order.
        closed: whether no statement may be added.
    """

    size: int
    statements: list[Statement] = field(default_factory=list)
    closed: bool = False

    @property
    def reads(self) -> set[Buffer]:
        """The buffers that it reads."""
        return {buffer for statement in self.statements for buffer in statement.reads}

    @property
    def writes(self) -> set[Buffer]:
        """The buffers that it writes."""
        return {statement.target.buffer for statement in self.statements}

    def takes(self, new: Statement) -> bool:
        """Whether a statement may be added: it must access shared buffers in the same way as the others."""
        if self.closed:
            return False
        for old in self.statements:
            wrote = old.target
            if any(isinstance(r, Read) and r.buffer is wrote.buffer and r != wrote for r in new.operands):
                return False
            touched = (wrote, *old.operands)
            writes = new.target
            if any(isinstance(r, Read) and r.buffer is writes.buffer and r != writes for r in touched):
                return False
        return True


@dataclass(eq=False)
class Reduction:
    """target[o] = the sum, largest or smallest over r of the product of all operands at (o, r).

    Args:
        kind: "sum", "larger" or "smaller".
        target: a new buffer with `outer` elements.
        operands: the operands, each with an access by (o, r).
        outer: the number of results.
        inner: the number of terms of each result.
    """

    kind: str
    target: Buffer
    operands: tuple[Source, ...]
    outer: int
    inner: int

    @property
    def reads(self) -> set[Buffer]:
        """The buffers that it reads."""
        return {operand.buffer for operand in self.operands if isinstance(operand, Read)}

    @property
    def writes(self) -> set[Buffer]:
        """The buffer that it writes."""
        return {self.target}


@dataclass(eq=False)
class Product:
    """target = K B, for a constant matrix K (rows x inner) and a matrix B (inner x columns) of each setting.

    Args:
        target: a new buffer with rows x columns elements.
        constant: the number of the constant K.
        operand: B, with an access by (row, column).
        rows: the rows of K.
        inner: the columns of K, and the rows of B.
        columns: the columns of B.
        places: the access to the target by (row, column).
    """

    target: Buffer
    constant: int
    operand: Read
    rows: int
    inner: int
    columns: int
    places: Access

    @property
    def reads(self) -> set[Buffer]:
        """The buffers that it reads."""
        return {self.operand.buffer}

    @property
    def writes(self) -> set[Buffer]:
        """The buffer that it writes."""
        return {self.target}


Piece: TypeAlias = "Loop | Reduction | Product"


class Schedule:
    """Orders pieces so that loops become long, and the results are those of the original order."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        """Insert a piece as early as its dependencies allow."""
        self.pieces.insert(self._after(piece.reads, piece.writes), piece)

    def compute(self, size: int, statement: Statement, *, alone: bool = False) -> None:
        """Insert a pointwise operation: into an existing loop of its size if one can take it."""
        writes = {statement.target.buffer}
        after = self._after(statement.reads, writes)
        # The last piece that it depends on may itself be a loop that can take it.
        for piece in () if alone else self.pieces[max(0, after - 1) :]:
            if isinstance(piece, Loop) and piece.size == size and piece.takes(statement):
                piece.statements.append(statement)
                return
        self.pieces.insert(after, Loop(size, [statement], closed=alone))

    def _after(self, reads: set[Buffer], writes: set[Buffer]) -> int:
        """The first position after all pieces that must come before."""
        for place in range(len(self.pieces), 0, -1):
            piece = self.pieces[place - 1]
            if reads & piece.writes or writes & (piece.reads | piece.writes):
                return place
        return 0
