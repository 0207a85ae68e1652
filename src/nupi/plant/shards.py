"""Parameters that are sharded over processes by `fully_shard`: their gradients, and sums over all shards.

In the graph stand the gathered parameters, not the sharded ones, so that `torch.autograd.grad` finds no way to them. A
backward pass finds it: `fully_shard` leaves the gradient's shard, averaged over the processes, in `.grad`. What stood
there before is put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether a parameter is a DTensor, as `fully_shard` makes them."""
    return hasattr(parameter, "device_mesh")


def local(tensor: Any) -> torch.Tensor:
    """What this process has of a tensor."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


class Shards:
    """The processes that hold the shards of a model's parameters; without any, every sum is this process's own."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        meshes = [_groups(p) for p in parameters if is_sharded(p)]
        if meshes and (len(meshes) < len(parameters) or any(each != meshes[0] for each in meshes)):
            raise TypeError(
                "some parameters of primal are sharded (fully_shard) and others are not, or not over the same "
                "processes, so the response cannot be measured through them; shard the whole model alike, or build "
                "SelfTuned without primal"
            )
        self.groups = meshes[0] if meshes else []
        self.any = bool(meshes)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers that are sums over this process's shards, summed over all of them."""
        for group in self.groups:
            torch.distributed.all_reduce(numbers, group=group)
        return numbers

    def joined(self, numbers: torch.Tensor) -> torch.Tensor:
        """The mean over the processes, as `fully_shard` takes it of gradients."""
        if not self.any:
            return numbers
        return self.total(numbers.clone()) / self._size()

    def agree(self, number: int) -> bool:
        """Whether all processes have the same number."""
        both = torch.tensor([number, -number])
        for group in self.groups:
            torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=group)
        return bool(both[0] == -both[1])

    def _size(self) -> int:
        size = 1
        for group in self.groups:
            size *= torch.distributed.get_world_size(group)
        return size


def backward_gradients(
    value: torch.Tensor, parameters: Sequence[torch.Tensor], weights: torch.Tensor | None
) -> list[torch.Tensor]:
    """This process's shards of a gradient, by a backward pass; the graph and `.grad` stay as they are."""
    before = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = None
        torch.autograd.backward(value, weights, retain_graph=True)
        return [torch.zeros_like(local(p)) if p.grad is None else local(p.grad).detach() for p in parameters]
    finally:
        for p, gradient in zip(parameters, before, strict=True):
            p.grad = gradient


def _groups(parameter: Any) -> list[Any]:
    """The process groups over which a parameter is split."""
    mesh = parameter.device_mesh
    return [mesh.get_group(number) for number, where in enumerate(parameter.placements) if where.is_shard()]
