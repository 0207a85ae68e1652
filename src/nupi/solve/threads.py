"""How many threads torch may use inside one operation while a sweep runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below so many elements an operation is over before a second thread has woken up; and on a machine with
# other work the first then waits for the second, which costs tens of times the operation itself.
SMALL = 10**6


@contextmanager
def threads_for(elements: int, device: torch.device) -> Iterator[None]:
    """One thread for operations on so few elements, torch's own choice for others; undone afterwards."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1 or elements >= SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
