"""Averaging what was measured of the plant with what was known of it."""

from __future__ import annotations

from typing import Any

import torch

from nupi.optim import self_tuning
from nupi.optim.self_tuning import PLANT, TINY, scale_of

TRUST = 10.0
SETTLING = 8.0  # what the first b asks for is settled after steps / 8
SLIGHT = 0.01  # a balance below this share of what b asks for is that of a loss with next to no gradient


def take_in(state: dict[str, torch.Tensor], note: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """Average what was measured with what was known, half and half in logarithms, and write it into the state.

    Returns the ratio of what was measured and what was known, of the response, the balance or alpha, in [0, 1].

    The first measurements under Adam can be off by decades, so what was known counts only within `TRUST` of the new.
    A response that is too small is the dangerous error: the average may not fall below what was known that fast.
    """
    count, *means = (row.view(state["response"].shape) for row in note)
    response, balance, slope, speed, bent = (mean / count.clamp(min=1.0) for mean in means)
    response, balance, slope = response.exp(), balance.exp(), slope.exp()
    old = {name: state[name].double() for name in PLANT}
    known = old["response"] > 0
    closeness = _ratio(old["response"], response)
    # A gradient that vanishes would make the multiplier that balances the loss grow without end.
    # While it is pushed in vain, its steepest gradient is not forgotten.
    fading = 0.5 ** ((group["taken"] - group["measured_at"]) / group["steps"])
    steepest = torch.maximum(slope, torch.where(state["stuck"] > 0, old["slope"], old["slope"] * fading))
    balance = balance * slope / steepest
    least = (
        self_tuning.SPEED / group["steps"] * state["worst"].double() / response * (slope / steepest).square()
    )
    least = torch.where(balance > SLIGHT * least, 0.0, least)
    near = torch.minimum(closeness, _ratio(old["balance"], balance))
    near = torch.minimum(near, torch.exp(-group["per_step"] * (old["curvature"] - bent).abs()))
    new = {
        "response": _averaged(old["response"], response, response / TRUST, response * TRUST**2),
        "balance": _averaged(old["balance"], balance, balance / TRUST**2, balance * TRUST),
        # 0 is what it was as long as nobody knew of several primal steps to a dual step.
        "curvature": torch.where(old["curvature"] > 0, (old["curvature"] + bent) / 2, bent),
        "speed": speed,
        "slope": steepest,
        "sure": closeness,
        "least": torch.maximum(old["least"], least),
    }
    settled = known & (state["age"] > group["steps"] / SETTLING)
    new["least"] = torch.where(settled, old["least"], new["least"])
    # A constraint that is not met by a multiplier this large may be one that cannot be met: its gradient vanishes,
    # and gains that followed it would explode.
    vain = (state["stuck"] > 0) & (slope < 0.5 * steepest)
    strained = known & ((state["level"].abs() > self_tuning.BEYOND * scale_of(state)) | vain)
    new["response"] = torch.where(strained, torch.maximum(new["response"], old["response"]), new["response"])
    new["balance"] = torch.where(vain, torch.minimum(new["balance"], old["balance"]), new["balance"])
    first = {
        "response": response,
        "balance": balance,
        "curvature": bent,
        "sure": 0.0 * response,
        "least": least,
    }
    for name, value in new.items():
        value = torch.where(known, value, first.get(name, value))
        state[name].copy_(torch.where(count > 0, value, old[name]))
    return torch.where(count > 0, near, 1.0)


def _ratio(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The smaller over the larger; 1 where both are 0."""
    return torch.minimum(a, b).clamp(min=TINY) / torch.maximum(a, b).clamp(min=TINY)


def _averaged(old: torch.Tensor, new: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The geometric mean of old and new, with the old one brought within a range first."""
    return (old.clamp(min=low, max=high) * new).sqrt()
