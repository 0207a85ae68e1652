"""A whole run in few rows. Each row has the mean, minimum and maximum of the same number of steps."""

from __future__ import annotations

from typing import NamedTuple

import torch

_ROWS = 1024
_CELLS = 2**21  # the most numbers of each kind, for any number of columns


class Overview(NamedTuple):
    """The rows of a thinned run: (rows, columns) each; `steps` is the step in the middle of a row."""

    steps: torch.Tensor
    mean: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


class Thinned:
    """Rows that each hold the same number of steps. When all rows are used, neighbours are merged in pairs."""

    def __init__(self, columns: int) -> None:
        self.size = max(64, min(_ROWS, _CELLS // (columns + 1))) // 2 * 2
        self.stride, self.total = 1, 0
        self._count = torch.zeros(self.size, columns + 1, dtype=torch.float64)
        self._sum = torch.zeros_like(self._count)
        self._low = torch.full_like(self._count, torch.inf)
        self._high = torch.full_like(self._count, -torch.inf)

    def add(self, rows: torch.Tensor) -> None:
        """Add rows of later steps. Their first column is the step."""
        last = self.total + len(rows) - 1
        while last // self.stride >= self.size:
            self._merge()
        at = torch.arange(self.total, last + 1).div(self.stride, rounding_mode="floor")
        at = at[:, None].expand(-1, rows.shape[1])
        seen = ~rows.isnan()
        self._count.scatter_add_(0, at, seen.double())
        self._sum.scatter_add_(0, at, rows.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf))
        self._low.scatter_reduce_(0, at, rows.where(seen, torch.inf), "amin")
        self._high.scatter_reduce_(0, at, rows.where(seen, -torch.inf), "amax")
        self.total = last + 1

    def overview(self) -> Overview:
        """The thinned run; nan in a column without values."""
        used = -(-self.total // self.stride)
        count = self._count[:used]
        seen = count > 0
        mean = (self._sum[:used] / count).where(seen, torch.nan)
        low, high = (ends[:used].where(seen, torch.nan) for ends in (self._low, self._high))
        return Overview(mean[:, 0], mean[:, 1:], low[:, 1:], high[:, 1:])

    def copy(self) -> Thinned:
        """A copy with the same rows."""
        other = object.__new__(Thinned)
        other.load(self.state())
        return other

    def state(self) -> dict[str, torch.Tensor | int]:
        """The rows as plain data."""
        used = -(-self.total // self.stride)
        tensors = {"count": self._count, "sum": self._sum, "low": self._low, "high": self._high}
        kept: dict[str, torch.Tensor | int] = {name: t[:used].clone() for name, t in tensors.items()}
        return {"size": self.size, "stride": self.stride, "total": self.total, **kept}

    def load(self, state: dict[str, torch.Tensor | int]) -> None:
        """Load the rows of a `state`."""
        self.size, self.stride, self.total = (int(state[name]) for name in ("size", "stride", "total"))
        fills = {"count": 0.0, "sum": 0.0, "low": torch.inf, "high": -torch.inf}
        for name, fill in fills.items():
            kept = state[name]
            assert isinstance(kept, torch.Tensor)
            whole = torch.full((self.size, kept.shape[1]), fill, dtype=torch.float64)
            whole[: len(kept)] = kept
            setattr(self, f"_{name}", whole)

    def _merge(self) -> None:
        half = self.size // 2

        def pairs(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.reshape(half, 2, -1)

        for tensor, merged, empty in (
            (self._count, pairs(self._count).sum(1), 0.0),
            (self._sum, pairs(self._sum).sum(1), 0.0),
            (self._low, pairs(self._low).amin(1), torch.inf),
            (self._high, pairs(self._high).amax(1), -torch.inf),
        ):
            tensor[:half] = merged
            tensor[half:] = empty
        self.stride *= 2
