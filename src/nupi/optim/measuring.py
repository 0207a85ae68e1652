"""When `SelfTuned` measures the response of the model.

The first measurements are at dual steps 1, 2, 4, 8, ...: the response changes most at the start, and Adam's second
moments with it. Then they are an interval apart, which is an eighth of `steps` at first. A measurement that finds the
response of the last one again doubles the interval, up to half of `steps`; any other brings it back to an eighth. So
does a learning rate of the model's optimizer that was changed by more than that, and it has the response measured at
once: gains would be too large by as much as the learning rate has grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MEASUREMENTS = 8  # in `steps`, once the first few are past
FEWEST = 2  # in `steps`, while the response stays what it was
STEADY = 0.9  # the smaller of two responses over the larger: above it, they are taken for the same
DEFAULTS = {
    "measured_at": 0,  # the dual step of the last measurement
    "interval": 0,  # dual steps to the next one; 0 before the first
    "rate": 0.0,  # the sum of the optimizer's learning rates at the last one
}


def is_due(group: dict[str, Any], rate: float) -> bool:
    """Whether to measure at this dual step, with the sum of the optimizer's learning rates at hand."""
    taken, last = group["taken"], group["measured_at"]
    if taken <= last:
        return False
    return bool(taken >= 2 * last or taken - last >= group["interval"] or _changed(group["rate"], rate))


def write_down(groups: Sequence[dict[str, Any]], closest: float, rate: float) -> None:
    """Note that the response was measured; `closest` says how near it was to the last one, in [0, 1]."""
    taken = groups[0]["taken"]
    for group in groups:
        often, seldom = (max(1, int(group["steps"] / number)) for number in (MEASUREMENTS, FEWEST))
        steady = closest >= STEADY and not _changed(group["rate"], rate)
        group["interval"] = min(max(2 * group["interval"], often), seldom) if steady else often
        group["measured_at"], group["rate"] = taken, rate


def sum_of_rates(optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """The learning rates of all groups, added up, but for those that are tensors: a look at one may have to wait."""
    rates = (group["lr"] for optimizer in optimizers for group in optimizer.param_groups)
    return sum(rate for rate in rates if isinstance(rate, (int, float)))


def _changed(before: float, now: float) -> bool:
    """Whether the learning rates are others than they were, by more than two responses may differ."""
    return min(before, now) < STEADY * max(before, now)
