"""Which gates to leave open at test time, so that a limit on the size is kept and used up.

Training ends near a limit. The gates nearest to where they open or close make up the difference:

    prefix    the strongest gates, as many as fit: the size rises with their number
    fill      then the next strongest that still fit, one by one, until the size is within `NEAR` of the limit

The fill matters where gates differ in size: a head of attention may be 2% of a small network, an MLP unit 0.1%.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Share = Callable[[torch.Tensor], torch.Tensor]

NEAR = 0.001


@dataclass(frozen=True)
class Layer:
    """The gates of one layer, where layers of a kind are to end with the same number of open ones.

    Args:
        kind: "heads" or "mlp".
        gates: their numbers, the strongest first.
    """

    kind: str
    gates: torch.Tensor


def strongest(order: torch.Tensor, share: Share, limit: float) -> torch.Tensor:
    """The gates to leave open: as many as fit, from the first of `order` on.

    Args:
        order: the numbers of all gates, or of those that may be open, the strongest first.
        share: of the network that is left, by gates that are 0 or 1.
        limit: of the share.

    Returns:
        The part of `order` that stays open.
    """
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool(share(order[:middle]) <= limit)
        low, high = (middle, high) if fits else (low, middle - 1)
    return order[:low]


def filled(order: torch.Tensor, share: Share, limit: float) -> torch.Tensor:
    """As `strongest`, and after them every gate that still fits; arguments and result are the same."""
    chosen = strongest(order, share, limit)
    for gate in order[len(chosen) + 1 :].split(1):  # the one in between is too large
        if limit - share(chosen) <= NEAR:
            break
        more = torch.cat([chosen, gate])
        if share(more) <= limit:
            chosen = more
    return chosen


def uniform(
    layers: Sequence[Layer],
    counts: Mapping[str, Sequence[int]],
    is_open: torch.Tensor,
    share: Share,
    limit: float,
) -> torch.Tensor | None:
    """The gates to leave open: the strongest of each layer, as many in all layers of a kind.

    For every number of heads the largest number of units that fits; of these pairs the one that moves the fewest gates.

    Args:
        layers: of all gates.
        counts: by kind, the numbers to choose from, in rising order.
        is_open: which gates are open now.
        share: as for `strongest`.
        limit: of the share.

    Returns:
        The gates that stay open, or None if nothing fits.
    """
    kinds = list(dict.fromkeys(layer.kind for layer in layers))

    def chosen(numbers: Mapping[str, int]) -> torch.Tensor:
        return torch.cat([layer.gates[: numbers[layer.kind]] for layer in layers])

    def moved(gates: torch.Tensor) -> int:
        stays = torch.zeros_like(is_open)
        stays[gates] = True
        return int((stays != is_open).sum())

    *first, last = kinds
    found = []
    for outer in [{first[0]: count} for count in counts[first[0]]] if first else [{}]:
        low, high = 0, len(counts[last])
        while low < high:
            middle = (low + high + 1) // 2
            fits = bool(share(chosen({**outer, last: counts[last][middle - 1]})) <= limit)
            low, high = (middle, high) if fits else (low, middle - 1)
        if low:
            found.append(chosen({**outer, last: counts[last][low - 1]}))
    return min(found, key=moved) if found else None
