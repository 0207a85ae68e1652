"""The gains that `SelfTuned` has found: as numbers, and as a `NuPI` that goes on with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi.optim.nupi import NuPI

if TYPE_CHECKING:
    from nupi.optim.base import DualOptimizer

Found: TypeAlias = "dict[str, torch.Tensor | int]"

_PLANT = ("response", "curvature", "sure")
_GOES_ON = ("xi", "beyond", "started")


def found_of(group: dict[str, Any], param: torch.Tensor, state: dict[str, torch.Tensor] | None) -> Found:
    """The gains of one multiplier and what they were found from; zeros, and no smoothing, before the first step."""

    def kept(name: str) -> torch.Tensor:
        return state[name].clone() if state else torch.zeros_like(param)

    weight = kept("weight")
    return {
        "ki": group["lr"] * kept("ki"),
        "kp": group["lr"] * kept("kp"),
        "nu": 1.0 - weight if state else weight,
        **{name: kept(name) for name in _PLANT},
        "measured_at": group["measured_at"],
    }


def frozen(dual: DualOptimizer) -> NuPI:
    """A `NuPI` for the same multipliers, with their gains and the state of their controllers."""
    groups = []
    for group in dual.param_groups:
        for param in group["params"]:
            found = found_of(group, param, dual.state.get(param))
            groups.append({"params": [param], **{name: found[name] for name in ("ki", "kp", "nu")}})
    successor = NuPI(groups, ki=0.0, maximize=dual.param_groups[0]["maximize"])
    for param, state in dual.state.items():
        kept = {slot: state[slot].clone() for slot in _GOES_ON if slot in state}
        if kept:
            successor.state[param] = kept
    return successor
