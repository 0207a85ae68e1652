"""Which channels can go: every channel has a number, and every reason to keep it is written down.

A tensor inside the network is known by the numbers of its channels and by the condition under which each is alive,
that is, not zero whatever the input. Layers that work channel by channel hand the numbers on; an addition makes two
numbers one; a layer that mixes channels asks that those which are alive be kept, and starts new numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from nupi.gates.harvesting.conditions import ALWAYS, NEVER, Conditions

LAST = "is the last one of its layer"


@dataclass(frozen=True)
class Flow:
    """One tensor of the network, seen through its channels.

    Args:
        numbers: of the channels, one a position along `dim`.
        alive: the condition of each position; where it is not met, the channel is zero whatever the input.
        dim: the dimension that the channels lie along.
        shape: of the whole tensor.
    """

    numbers: torch.Tensor
    alive: torch.Tensor
    dim: int
    shape: torch.Size

    def but(self, shape: torch.Size, alive: torch.Tensor | None = None) -> Flow:
        """The same channels in a tensor of another shape, perhaps alive under other conditions."""
        return replace(self, shape=shape, alive=self.alive if alive is None else alive)

    def always_alive(self, shape: torch.Size) -> Flow:
        """The same channels, after something that lights up zeros."""
        return self.but(shape, torch.full_like(self.alive, ALWAYS))


class Pieces(tuple[Flow, ...]):
    """The parts that a tensor is cut into."""

    __slots__ = ()


class Portion(tuple[Flow, ...]):
    """A number of channels, divided: the channels, as often as they are divided by."""

    __slots__ = ()


class Channels:
    """All channels of a network: which are one, and which must stay, under what condition and for what reason."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self._parent: list[int] = []
        self._needed: dict[int, int] = {}  # the condition under which a channel must stay
        self._reason: dict[int, str] = {}
        self._tied: dict[int, str] = {}  # the layer that has a channel in a group

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
                if b in self._needed:
                    self._keep(a, self._needed.pop(b), self._reason.pop(b))

    def tie(self, groups: torch.Tensor, layer: str) -> None:
        """Make the channels of each row one, since this layer has them in a group."""
        for other in groups[:, 1:].T:
            self.unite(groups[:, 0], other)
            self._tied.update(dict.fromkeys(other.tolist(), layer))
            self._tied.update(dict.fromkeys(groups[:, 0].tolist(), layer))

    def keep(self, numbers: torch.Tensor, reason: str, alive: torch.Tensor | None = None) -> None:
        """Note that these channels must stay, or must stay where these conditions are met."""
        conditions = [ALWAYS] * len(numbers) if alive is None else alive.tolist()
        for number, condition in zip(numbers.tolist(), conditions, strict=True):
            if condition != NEVER:
                self._keep(self._root(number), condition, reason)

    def reason(self, number: int) -> str | None:
        """Why this channel must stay, if it must."""
        reason, layer = self._reason.get(self._root(number)), self._tied.get(number)
        if layer is None or reason in (None, LAST):
            return reason
        return f"is in a group of {layer!r}, which stays or goes as a whole, and one of the group {reason}"

    def needed(self, numbers: torch.Tensor) -> torch.Tensor:
        """The conditions under which these channels must stay."""
        return torch.tensor([self._needed.get(self._root(number), NEVER) for number in numbers.tolist()])

    def stays(self, numbers: torch.Tensor) -> torch.Tensor:
        """Which of these channels may have to stay."""
        return self.needed(numbers) != NEVER

    def _keep(self, root: int, condition: int, reason: str) -> None:
        self._needed[root] = self.conditions.join("some", self._needed.get(root, NEVER), condition)
        self._reason.setdefault(root, reason)

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number
