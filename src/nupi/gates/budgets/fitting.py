"""Which gates to leave open at test time, so that a limit on the size is kept and used up.

Training ends near a limit. The gates nearest to where they open or close make up the difference:

    prefix    the strongest gates, as many as fit: the size rises with their number
    fill      then the next strongest that still fit, one by one, until the size is within `NEAR` of the limit

The fill matters where gates differ in size: a head of attention may be 2% of a small network, an MLP unit 0.1%.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Share = Callable[[torch.Tensor], torch.Tensor]

NEAR = 0.001


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
