"""Find the channels that can be removed: number every channel, and note every reason to keep one.

Each tensor of the network has the numbers of its channels, and a condition per channel. A channel is alive where its
condition is met; elsewhere it is zero whatever the input.

| operation | what it does |
| --- | --- |
| works channel by channel (an activation) | passes the numbers on |
| adds two tensors | unites their numbers, pair by pair |
| mixes channels (a convolution) | keeps the incoming channels that are alive, and makes new numbers |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from nupi.gates.harvesting.conditions import ALWAYS, NEVER, Conditions

LAST = "is the last one of its layer"


@dataclass(frozen=True)
class Flow:
    """The channels of one tensor of the network.

    Args:
        numbers: the numbers of the channels, one for each position along `dim`.
        alive: the condition of each position; where it is not met, the channel is zero whatever the input.
        dim: the dimension of the channels.
        shape: the shape of the whole tensor.
    """

    numbers: torch.Tensor
    alive: torch.Tensor
    dim: int
    shape: torch.Size

    def but(self, shape: torch.Size, alive: torch.Tensor | None = None) -> Flow:
        """The same channels in a tensor of another shape, with other conditions if given."""
        return replace(self, shape=shape, alive=self.alive if alive is None else alive)

    def always_alive(self, shape: torch.Size) -> Flow:
        """The same channels after an operation that does not map 0 to 0."""
        return self.but(shape, torch.full_like(self.alive, ALWAYS))


class Pieces(tuple[Flow, ...]):
    """The pieces of a tensor that is split or chunked."""

    __slots__ = ()


class Portion(tuple[Flow, ...]):
    """The result of `size // n` for a number of channels: the channels, repeated n times."""

    __slots__ = ()


class Channels:
    """All channels of a network: which stay or go together, which must stay, under what condition, and why."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self._parent: list[int] = []
        self._needed: dict[int, int] = {}  # the condition under which a channel must stay
        self._reason: dict[int, str] = {}
        self._tied: dict[int, str] = {}  # the layer whose group a channel is in

    def new(self, count: int) -> torch.Tensor:
        """Numbers for `count` new channels."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def unite(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Unite channels, position by position: they stay or go together."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            if a != b:
                self._parent[b] = a
                if b in self._needed:
                    self._keep(a, self._needed.pop(b), self._reason.pop(b))

    def tie(self, groups: torch.Tensor, layer: str) -> None:
        """Unite the channels of each row, because they are one group of this layer."""
        for other in groups[:, 1:].T:
            self.unite(groups[:, 0], other)
            self._tied.update(dict.fromkeys(other.tolist(), layer))
            self._tied.update(dict.fromkeys(groups[:, 0].tolist(), layer))

    def keep(self, numbers: torch.Tensor, reason: str, alive: torch.Tensor | None = None) -> None:
        """Note that these channels must stay, always or where the conditions `alive` are met."""
        conditions = [ALWAYS] * len(numbers) if alive is None else alive.tolist()
        for number, condition in zip(numbers.tolist(), conditions, strict=True):
            if condition != NEVER:
                self._keep(self._root(number), condition, reason)

    def reason(self, number: int) -> str | None:
        """Why this channel must stay, if it must."""
        reason, layer = self._reason.get(self._root(number)), self._tied.get(number)
        if layer is None or reason in (None, LAST):
            return reason
        return f"is in a group of {layer!r}, which stays or goes as a whole, and one channel of the group {reason}"

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
