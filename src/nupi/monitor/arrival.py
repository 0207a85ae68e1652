"""Numbers on their way from a device to the host, which nobody waits for."""

from __future__ import annotations

import torch


class Arrival:
    """Tensors that are copied to the host: begun without waiting, there when `ready` says so."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        self._events = [torch.Event(device) for device in devices]
        for event in self._events:
            event.record()

    def ready(self) -> bool:
        """Whether all of them are there."""
        return all(event.query() for event in self._events)

    def result(self) -> list[torch.Tensor]:
        """The tensors, on the host; waits for them if they are not there yet."""
        for event in self._events:
            event.synchronize()
        return self._tensors
