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


class ByName(dict[Any, Found]):
    """What was found, by the constraint's name; by its multiplier, until the Lagrangian has told the name."""

    def __missing__(self, key: object) -> Found:
        """Say why a name is not there."""
        unnamed = any(isinstance(each, torch.Tensor) for each in self)
        known = ", ".join(repr(each) for each in self if isinstance(each, str))
        if unnamed:
            raise KeyError(
                f"{key!r}: names are known after the first call of lagrangian(loss, violations) that follows an "
                "ascend; until then use dual.gains()[lagrangian.get_parameter(name)]"
            )
        raise KeyError(f"{key!r} is no constraint that this optimizer moves; it has {known}")


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
    if not any(bool(torch.as_tensor(group["ki"]).any()) for group in groups):
        raise RuntimeError(
            "no gains have been found yet, and a NuPI without them would not move; freeze after the first measurement "
            "(dual.gains() tells measured_at)"
        )
    successor = NuPI(groups, ki=0.0, maximize=dual.param_groups[0]["maximize"])
    for param, state in dual.state.items():
        kept = {slot: state[slot].clone() for slot in _GOES_ON if slot in state}
        if kept:
            successor.state[param] = kept
    return successor
