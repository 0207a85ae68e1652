"""A buffer for the violations and multipliers of one group over a block of steps, one row per step.

New memory for every step would cost more than the copy into it. 1,000 constraints need 8 KB a step, 4 MB a block. The
system would take this back after each block, and clear it before the next.
"""

from __future__ import annotations

import torch


class Buffer:
    """Rows that are written one by one and read together.

    Args:
        name: the name of the group.
        first: the values of one step. All others must have the same dtype, device and number.
        rows: the number of rows.
    """

    def __init__(self, name: str, first: torch.Tensor, rows: int) -> None:
        self.name, self.width = name, len(first)
        self.steps: list[int] = []
        self._matrix = first.new_empty(rows, len(first))
        self._rows = self._matrix.unbind(0)  # views are made once: making one takes longer than filling it
        self._dtype, self._device = first.dtype, first.device

    def put(self, step: int, error: torch.Tensor, multiplier: torch.Tensor) -> bool:
        """Write the next row. Returns False and writes nothing if the type differs or the buffer is full."""
        if (
            # `cat` would round to the type of its output without a warning.
            error.dtype is not self._dtype
            or multiplier.dtype is not self._dtype
            or error.device != self._device
            or multiplier.device != self._device
            or len(self.steps) == len(self._rows)
        ):
            return False
        torch.cat((error, multiplier), out=self._rows[len(self.steps)])
        self.steps.append(step)
        return True

    def written(self) -> torch.Tensor:
        """All rows written so far, in order. Read them before you write the next one."""
        return self._matrix[: len(self.steps)]
