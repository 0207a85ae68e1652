"""Choose the gates to leave open at test time, so that the size is just below its limit.

Training ends near the limit. Then some gates are opened or closed, those nearest to the point where they switch first:

    prefix    the strongest gates, as many as fit within the limit
    fill      then the next strongest that still fit, one by one, until the size is within `NEAR` of the limit

The fill helps if gates differ in size: an attention head may be 2% of a small network, an MLP unit 0.1%.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Share = Callable[[torch.Tensor], torch.Tensor]

NEAR = 0.001


def strongest(order: torch.Tensor, share: Share, limit: float) -> torch.Tensor:
    """The gates to leave open: the first of `order`, as many as fit within the limit.

    Args:
        order: the numbers of all gates, or of those that may be open, the strongest first.
        share: the share of the network that is left, as a function of gates that are 0 or 1.
        limit: the limit of the share.

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
    """The gates of `strongest`, and then every further gate that still fits; the same arguments and result."""
    chosen = strongest(order, share, limit)
    for gate in order[len(chosen) + 1 :].split(1):  # the first one after `chosen` is too large
        if limit - share(chosen) <= NEAR:
            break
        more = torch.cat([chosen, gate])
        if share(more) <= limit:
            chosen = more
    return chosen
