"""Constraints with many processes: the number of ranks, and sums over them.

`Lagrangian(..., reduce="mean")` joins the violations of all ranks before it ascends:

| file           | what it has                                                          |
| -------------- | -------------------------------------------------------------------- |
| `together.py`  | joining the violations of all ranks, so that all make the same step  |
| `header.py`    | the header of the message that ranks send                            |
| `drift.py`     | finding ranks that differ                                            |

This module also has `total`, for violations that are not plain means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import torch

from nupi.violations.kind import Reduce

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["PeerRefusedError", "total", "world_size"]

REDUCES: tuple[Reduce, ...] = get_args(Reduce)


def __dir__() -> list[str]:
    return __all__


class PeerRefusedError(RuntimeError):
    """Another rank refused its own input, so no rank moved. The error of that rank says why.

    The rank with the wrong input raises its own error. All others raise this one. Catch both to skip a batch together.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()}, reduce="mean")
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> for rate in (0.5, float("nan"), 0.4):
        ...     try:
        ...         lagrangian.ascend(dual, {"rate": torch.tensor(rate) - 0.3})
        ...     except (nupi.NonFiniteViolationError, PeerRefusedError):
        ...         print("every rank skips this batch")
        every rank skips this batch
        >>> lagrangian  # moved by 0.1 * 0.2, then by 0.1 * 0.1
        Lagrangian(rate: Inequality(1) at 0.03)
    """


def world_size(group: ProcessGroup | None) -> int:
    """How many ranks a process group has; 1 without `torch.distributed`.

    Args:
        group: the process group; None is the default one.

    Example:
        >>> world_size(None)  # this is a single process
        1
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    size = torch.distributed.get_world_size(group)
    if size < 1:
        raise ValueError(
            f"rank {torch.distributed.get_rank()} is not in the process group that it got as group; call this only on "
            "the ranks of the group, or give each rank a group that it is in"
        )
    return size


def total(tensor: torch.Tensor, group: ProcessGroup | None = None) -> torch.Tensor:
    """The sum over all ranks, x_0 + ... + x_{n-1} = total, the same to the bit on each; gradients flow through it.

    Use it for a violation that is not a plain mean, such as the gap between two rates: compute it from joined sums and
    counts, as in one process. Its gradient is right too: DistributedDataParallel and `fully_shard` average gradients
    over ranks, and the average is the gradient of the joined batch. The Lagrangian then needs no `reduce`, because all
    ranks have the same violation. Without `torch.distributed` it returns the tensor itself.

    Example:
        >>> hits, seen = torch.tensor([3.0, 1.0]), torch.tensor([4.0, 4.0])
        >>> hits, seen = total(hits), total(seen)
        >>> hits / seen - hits.sum() / seen.sum()  # the gap of each group's rate to the rate of all
        tensor([ 0.2500, -0.2500])
    """
    if world_size(group) == 1:
        return tensor
    joined: torch.Tensor = _Total.apply(tensor, group)  # type: ignore[no-untyped-call]
    return joined


class _Total(torch.autograd.Function):
    """Forward and backward are the same sum, to any order: each rank's output depends on every rank's input."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        joined = tensor.detach().clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad: torch.Tensor = _Total.apply(grads[0], ctx.group)  # type: ignore[no-untyped-call]
        return grad, None
