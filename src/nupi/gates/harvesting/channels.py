"""Which channels can go: every channel has a number, and every reason to keep it is written down.

A tensor inside the network is known by the numbers of its channels and by which of them are zero whatever the
input. Layers that work channel by channel hand the numbers on; an addition makes two numbers one; a layer that
mixes channels asks that those which are not zero be kept, and starts new numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Flow:
    """One tensor of the network, seen through its channels.

    Args:
        numbers: of the channels, one a position along `dim`.
        zero: which positions are zero whatever the input.
        dim: the dimension that the channels lie along.
        shape: of the whole tensor.
    """

    numbers: torch.Tensor
    zero: torch.Tensor
    dim: int
    shape: torch.Size

    def but(self, shape: torch.Size, zero: torch.Tensor | None = None) -> Flow:
        """The same channels in a tensor of another shape, perhaps zero elsewhere."""
        return replace(self, shape=shape, zero=self.zero if zero is None else zero)

    def nowhere_zero(self, shape: torch.Size) -> Flow:
        """The same channels, after something that lights up zeros."""
        return self.but(shape, torch.zeros_like(self.zero))


class Channels:
    """All channels of a network: which are one, and which must stay, for what reason."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}

    def new(self, count: int) -> torch.Tensor:
        """Numbers for `count` new channels."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def unite(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Make channels one, position by position: they stay or go together."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            if a != b:
                self._parent[b] = a
                reason = self._reason.pop(b, None)
                if reason is not None:
                    self._reason.setdefault(a, reason)

    def keep(self, numbers: torch.Tensor, reason: str) -> None:
        """Note that these channels must stay."""
        for number in numbers.tolist():
            self._reason.setdefault(self._root(number), reason)

    def reason(self, number: int) -> str | None:
        """Why this channel must stay, if it must."""
        return self._reason.get(self._root(number))

    def stays(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which of these channels must stay."""
        return torch.tensor(
            [self.reason(number) is not None for number in numbers.tolist()], dtype=torch.bool
        )

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number
