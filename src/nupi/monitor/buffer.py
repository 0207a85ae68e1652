"""Room for what a block of steps shows of one group, one row a step.

New memory for every step would cost more than the copy into it: of 1,000 constraints 8 KB a step, 4 MB a block, which
the system takes back after each block and clears before the next.
"""

from __future__ import annotations

import torch


class Buffer:
    """Rows that are written one after another, and read together.

    Args:
        name: the group whose steps it takes.
        first: the values of one such step; all that follow are of their dtype, device and number.
        rows: how many steps there is room for.
    """

    def __init__(self, name: str, first: torch.Tensor, rows: int) -> None:
        self.name, self.width = name, len(first)
        self.steps: list[int] = []
        self._matrix = first.new_empty(rows, len(first))
        self._rows = self._matrix.unbind(0)  # a view takes longer to make than to fill
        self._dtype, self._device = first.dtype, first.device

    def put(self, step: int, error: torch.Tensor, multiplier: torch.Tensor) -> bool:
        """Write the next row; False, with nothing written, if these are of another type or there is no room."""
        if (
            # `cat` would round to its output's type without a word.
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
        """All rows that were written, in their order; they are to be read before the next is written."""
        return self._matrix[: len(self.steps)]
