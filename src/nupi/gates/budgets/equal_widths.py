"""Choose gates so that all blocks of a transformer have the same number of heads, and the same number of MLP units.

For each number of heads, the limit allows a largest number of units. Of these pairs, the one is taken that changes the
widths after training least, in proportion. Changing the fewest gates would be worse: it would meet the limit by heads
alone, because a head has as many parameters as about a hundred units.
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
    """The counts in words: "2 key-value heads and 1 MLP unit"."""
    return " and ".join(f"{count} {WORDS[kind]}{'s' * (count != 1)}" for kind, count in counts.items())


@dataclass(frozen=True)
class EqualWidths:
    """The widths that all blocks of a transformer can have.

    Args:
        kinds: "heads" or "mlp" for each gated layer.
        counts: by kind, the numbers of gates to choose from, in rising order.
        says: whether the model's class can build these widths from its config.
    """

    kinds: Sequence[str]
    counts: Mapping[str, Sequence[int]]
    says: Callable[[Mapping[str, int]], bool]

    def strongest(self, layers: Sequence[torch.Tensor], counts: Mapping[str, int]) -> torch.Tensor:
        """The first gates of each layer, as many as `counts` says; `layers` has their numbers, the strongest first."""
        return torch.cat([gates[: counts[kind]] for gates, kind in zip(layers, self.kinds, strict=True)])

    def around(
        self, share: Callable[[Mapping[str, int]], float], limit: float
    ) -> tuple[list[Widths], list[Widths]]:
        """By number of heads, the largest network within the limit and the smallest beyond it.

        Args:
            share: the share of the network that is left, as a function of the number of gates in every block.
            limit: the limit of the share.
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
        """Of the widths at most one percentage point below the limit, those that change the present ones least.

        Changes are in proportion. If no widths are that near, the largest network.

        Args:
            within: networks that keep the limit.
            opened: how many gates of each layer are open now.
            limit: the limit of the share.
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
