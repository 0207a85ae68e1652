"""When `SelfTuned` measures the response of the model.

The first measurements are at dual steps 1, 2, 4, 8, ...: the response changes most at the start, and Adam's second
moments with it. Then they are an interval apart, which is an eighth of `steps` at first. A measurement that finds what
the last one has found doubles the interval, up to half of `steps`; any other brings it back to an eighth. Once
`steps` are past, the interval is at least a quarter of the steps so far: the response changes ever more slowly, and a
long run pays for few measurements. Where the learning rate of the model's optimizer has doubled, or fallen to half, the
response is measured at once: gains would be too large by as much as the learning rate has grown. The steps so far are
then counted anew.

A batch may show nothing of a constraint whose response is not known yet. The next batch that shows it is measured at
once. A constraint without a gradient is given up after a few such measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MEASUREMENTS = 8  # in `steps`, once the first few are past
FEWEST = 2  # in `steps`, while the response stays what it was
LATER = (
    0.25  # of the steps since the learning rate leapt: the shortest interval once these are more than `steps`
)
LEAP = 0.5  # the smaller of two learning rates over the larger: from here on, nothing that was measured holds
STEADY = 0.9  # the smaller of two responses over the larger: above it, they are taken for the same
TRIES = 16
DEFAULTS = {
    "measured_at": 0,  # the dual step of the last measurement
    "interval": 0,  # dual steps to the next one; 0 before the first
    "rate": 0.0,  # the sum of the optimizer's learning rates at the last one
    "leapt": 0,  # the dual step at which the learning rate was first seen, or seen to have leapt
    "held": 0,  # multipliers that had been moved by then
    "unknown": 0,  # how many of their constraints had no response after it
    "tries": TRIES,  # measurements that may still be made for them alone
}


def is_due(group: dict[str, Any], rate: float) -> bool:
    """Whether to measure at this dual step, with the sum of the optimizer's learning rates at hand."""
    taken, last = group["taken"], group["measured_at"]
    if taken <= last:
        return False
    so_far = last - group["leapt"]
    later = LATER * so_far if so_far > group["steps"] else 0.0
    return taken >= 2 * last or taken - last >= max(group["interval"], later) or has_leapt(group, rate)


def has_leapt(group: dict[str, Any], rate: float) -> bool:
    """Whether the learning rate has doubled, or fallen to half, since the last measurement."""
    before = group["rate"]
    return bool(min(before, rate) <= LEAP * max(before, rate) and before != rate)


def is_incomplete(group: dict[str, Any], moved: int) -> bool:
    """Whether some constraint may have no response yet, with so many multipliers moved by now."""
    waiting = group["unknown"] > 0 or moved > group["held"]
    return bool(waiting and group["tries"] > 0 and group["taken"] > group["measured_at"] > 0)


def write_down(
    groups: Sequence[dict[str, Any]], closest: float, rate: float, moved: int, unknown: int
) -> None:
    """Note that the plant was measured.

    Args:
        groups: all param groups.
        closest: how near it was to what was known, in [0, 1].
        rate: the sum of the optimizer's learning rates.
        moved: how many multipliers have been moved.
        unknown: how many of their constraints have no response.
    """
    taken = groups[0]["taken"]
    for group in groups:
        in_vain = moved == group["held"] and 0 < group["unknown"] <= unknown
        group["tries"] = group["tries"] - 1 if in_vain else TRIES
        group["held"], group["unknown"] = moved, unknown
        often, seldom = (max(1, int(group["steps"] / number)) for number in (MEASUREMENTS, FEWEST))
        longer = min(max(2 * group["interval"], often), seldom)
        group["interval"] = longer if closest >= STEADY else often
        if has_leapt(group, rate):
            group["leapt"] = taken
        group["measured_at"], group["rate"] = taken, rate


def sum_of_rates(optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """The learning rates of all groups, added up, but for those that are tensors: a look at one may have to wait."""
    rates = (group["lr"] for optimizer in optimizers for group in optimizer.param_groups)
    return sum(rate for rate in rates if isinstance(rate, (int, float)))


def rests(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether nothing can move now: all learning rates are 0, as where they warm up, or no parameter has a gradient."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return all(type(group["lr"]) in (int, float) and group["lr"] == 0 for group in groups) or not any(
        param.requires_grad for group in groups for param in group["params"]
    )
