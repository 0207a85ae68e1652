"""Constraints in a run of many processes: sums over ranks, and ranks that agree.

`Lagrangian(..., reduce="mean")` joins the violations of all ranks before it ascends (see `nupi.joint`). What is
here has other uses too: `total`, for violations that are not plain means.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from nupi.constraints import Averaged, Indexed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup

    from nupi.constraints import Constraint
    from nupi.violations import Violation

Reduce: TypeAlias = Literal["mean", "sum"]
REDUCES: tuple[Reduce, ...] = get_args(Reduce)


class PeerRefusedError(RuntimeError):
    """Another rank refused its own input, so that no rank moved; its error says why."""


def world_size(group: ProcessGroup | None) -> int:
    """How many ranks there are to agree with; 1 when nothing is distributed."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size(group)


def total(tensor: torch.Tensor, group: ProcessGroup | None = None) -> torch.Tensor:
    """The sum over all ranks, the same to the bit on each, through which gradients flow.

    With it a violation that is no plain mean, such as the gap between two rates, is computed from joined sums
    and counts as in one process, and so is its gradient: under DistributedDataParallel and `fully_shard`,
    which average gradients over ranks, the average is the gradient of the joined batch. The Lagrangian then
    needs no `reduce`: its ranks agree already. When nothing is distributed it is the tensor itself.

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
    """Forward and backward are the same sum: each rank's output depends on every rank's input."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        joined = tensor.detach().clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(grad, group=ctx.group)
        return grad, None


def share(reduce: Reduce, violation: Violation, group: ProcessGroup | None) -> int:
    """What a rank's term counts in the Lagrangian, for the average over ranks to be the joined one."""
    adds_up = isinstance(violation, Indexed) or (reduce == "sum" and not isinstance(violation, Averaged))
    return world_size(group) if adds_up else 1


def check_agreement(
    constraints: Mapping[str, Constraint],
    multipliers: Mapping[str, torch.Tensor],
    reduce: Reduce,
    group: ProcessGroup | None,
) -> None:
    """Raise on every rank unless all have the same constraints and start from the same multipliers."""
    problem = ", ".join(f"{name!r}: {constraint!r}" for name, constraint in constraints.items())
    exact = f"{problem} {[m.dtype for m in multipliers.values()]} {reduce}"
    named = int.from_bytes(hashlib.sha256(exact.encode()).digest()[:7], "little")
    device = next(iter(multipliers.values())).device
    here = torch.tensor([named, 0], dtype=torch.int64, device=device)
    for multiplier in multipliers.values():
        # A copy, because a single multiplier may have a stride of 0, which cannot be viewed as bits.
        flat = multiplier.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
        bits = flat.view(torch.int32).long()
        here[1] = here[1] * 31 + (bits * torch.arange(1, len(bits) + 1, device=device)).sum()
    everyone = [torch.empty_like(here) for _ in range(world_size(group))]
    torch.distributed.all_gather(everyone, here, group=group)
    problems, starts = zip(*(each.tolist() for each in everyone), strict=True)
    if len(set(problems)) > 1:
        raise ValueError(
            f"the ranks have different constraints; this one has {{{problem}}} with reduce={reduce!r}. "
            "Build the same Lagrangian on every rank"
        )
    if len(set(starts)) > 1:
        raise ValueError(
            "the ranks start from different multipliers and would never agree; build them alike, or load the "
            "checkpoint on every rank"
        )
