"""Limit the threads that torch uses inside one operation while a sweep runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

# With fewer elements, an operation ends before a second thread has started. If the machine has other work, the first
# thread then waits for the second, tens of times as long as the operation itself takes.
SMALL = 10**6


@contextmanager
def threads_for(elements: int, device: torch.device) -> Iterator[None]:
    """Use one thread if operations have few elements, else torch's own choice. Restored at the end."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1 or elements >= SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
