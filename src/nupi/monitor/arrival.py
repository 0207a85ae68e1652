"""Copy numbers from a device to the host without waiting for them."""

from __future__ import annotations

import torch


class Arrival:
    """A copy of tensors to the host that runs in the background; `ready` says when it has ended."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    def ready(self) -> bool:
        """Whether all tensors have been copied."""
        return all(event.query() for event in self._events)

    def result(self) -> list[torch.Tensor]:
        """The tensors on the host; waits for the copy if necessary."""
        for event in self._events:
            event.synchronize()
        return self._tensors
