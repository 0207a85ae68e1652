"""Which gates to leave open so that all blocks of a transformer end with as many heads, and as many MLP units.

There is one such network for each pair of a number of heads and a number of units, and the limit leaves for each
number of heads a largest number of units. Of these pairs, the one is taken whose widths are nearest in proportion to
those that training has left. To move the fewest gates would meet the limit by heads alone: a head is worth as much as a
hundred units.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

POINT = 0.01
WORDS = {"heads": "key-value head", "mlp": "MLP unit"}


@dataclass(frozen=True)
class Widths:
    """How many gates are open in every block, by the kind of block, and the share of the network that is left."""

    counts: Mapping[str, int]
    share: float

    def __str__(self) -> str:
        return f"{in_words(self.counts)} in every block would leave {self.share:.4f} of the network"


def in_words(counts: Mapping[str, int]) -> str:
    """Such as "2 key-value heads and 1 MLP unit"; only where queries share them are there more heads than these."""
    return " and ".join(f"{count} {WORDS[kind]}{'s' * (count != 1)}" for kind, count in counts.items())


@dataclass(frozen=True)
class EqualWidths:
    """What all blocks of a transformer can have in common.

    Args:
        kinds: of each gated layer, "heads" or "mlp".
        counts: by kind, the numbers of gates to choose from, in rising order.
        says: whether the model's class can build these widths from its config.
    """

    kinds: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    says: Callable[[Mapping[str, int]], bool]

    def strongest(self, layers: Sequence[torch.Tensor], counts: Mapping[str, int]) -> torch.Tensor:
        """So many gates of each layer; `layers` are their numbers, the strongest first."""
        return torch.cat([gates[: counts[kind]] for gates, kind in zip(layers, self.kinds, strict=True)])

    def around(
        self, share: Callable[[Mapping[str, int]], float], limit: float
    ) -> tuple[list[Widths], list[Widths]]:
        """For each number of heads: the largest network that keeps the limit, and the smallest that does not.

        Args:
            share: of the network that is left, by the number of gates in every block.
            limit: of the share.
        """
        *first, last = dict.fromkeys(self.kinds)
        within, above = [], []
        for outer in [{first[0]: count} for count in self.counts[first[0]]] if first else [{}]:
            line = [{**outer, last: count} for count in self.counts[last]]
            fits = bisect_right(line, limit, key=share)
            within += [Widths(each, share(each)) for each in line[:fits][-1:]]
            above += [Widths(each, share(each)) for each in line[fits:][:1]]
        return within, above

    def nearest(self, within: Sequence[Widths], opened: Sequence[int], limit: float) -> Widths:
        """Of the widths within a point below the limit those that change the present ones least in proportion.

        If none is within a point, the largest network.

        Args:
            within: networks that keep the limit.
            opened: how many gates of each layer are open now.
            limit: of the share.
        """
        now: dict[str, list[int]] = {}
        for kind, count in zip(self.kinds, opened, strict=True):
            now.setdefault(kind, []).append(max(count, 1))

        def change(widths: Widths) -> float:
            return sum(
                math.log(count * len(now[kind]) / sum(now[kind])) ** 2
                for kind, count in widths.counts.items()
            )

        least = min(limit - POINT, max(each.share for each in within))
        return min((each for each in within if each.share >= least), key=change)
