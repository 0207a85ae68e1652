"""The plant's response b from violations and multipliers alone, for where the model is out of reach.

The model is e_t - e_{t+1} = h e_t + b theta_t + constant. Both signals pass through the same band (the difference of
two moving averages, which takes out the constant and the noise), and b is found by least squares with forgetting:

    y_t = E_{t-1} - E_t,    y = h E + b Theta

It is believed where it explains enough of y. Until then b is a guess from the size of the loss: the multiplier that
makes the constraint as large as the loss should do its work in `steps`. While the violation stalls, and nothing better
is found, b falls: a gain that is too small is found out so, and a motion that had other causes than the multiplier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.optim.arithmetic import at_most, exp
from nupi.optim.self_tuning import BEYOND, PATIENCE, ROOM, SPEED, TINY, violation

if TYPE_CHECKING:
    from nupi.constraints import Bounds
    from nupi.optim.self_tuning import State
    from nupi.rule import Gain

BELIEF = 0.3  # of what h alone leaves unexplained, relative to what is left
FAINT = 0.01  # in units of `balance`: multipliers that move by less are not heard
STILL = 0.1  # a violation whose band is narrower than this share of it does not move
FALL = 3.0  # b may fall by e^-3 within `steps` / SPEED,
AT_ONCE = 0.25  # and by e^-0.25 in one step, however short `steps` is: a few steps say little
AT_REST = ("most", "e_slow", "e_band", "m_fast", "m_slow", "s_ee", "s_em", "s_mm", "s_ye", "s_ym", "s_yy")
IDENTIFIED = ("e_fast", *AT_REST)


def open_(theta: torch.Tensor, state: State, e: torch.Tensor) -> None:
    """Set the state before the first step."""
    for name in ("e_fast", "e_slow"):
        state[name].copy_(e)
    for name in ("m_fast", "m_slow"):
        state[name].copy_(theta)


def hear_(state: State, e: torch.Tensor, steps: Gain) -> None:
    """Smooth the violation; this is done at every step."""
    state["e_fast"].lerp_(e, at_most(8 * SPEED / steps, 1.0))


def identify_(
    theta: torch.Tensor, state: State, steps: Gain, stride: float, scale: Gain, bounds: Bounds | None
) -> None:
    """Take one more pair of multiplier and violation in, and update `response` and `balance`.

    The violation, as the answer to `theta`, has been heard by `hear_`.

    Args:
        theta: the multipliers.
        state: of the rule, with the slots of `IDENTIFIED`.
        steps: the horizon of the rule.
        stride: how many steps lie between two calls.
        scale: the size of the loss.
        bounds: of the multipliers.
    """
    omega = SPEED * stride / steps
    fast, slow, keep = at_most(8 * omega, 1.0), at_most(omega / 2, 0.5), exp(-omega)
    before, cause = state["e_band"].clone(), state["m_fast"] - state["m_slow"]
    state["e_slow"].lerp_(state["e_fast"], slow)
    state["m_fast"].lerp_(theta, fast)
    state["m_slow"].lerp_(theta, slow)
    torch.sub(state["e_fast"], state["e_slow"], out=state["e_band"])
    y = (before - state["e_band"]) / stride
    for name, product in (
        ("s_ee", before * before),
        ("s_em", before * cause),
        ("s_mm", cause * cause),
        ("s_ye", y * before),
        ("s_ym", y * cause),
        ("s_yy", y * y),
    ):
        state[name].mul_(keep).add_(product)
    found, explained, rest, apart = _least_squares(state)
    samples = (1.0 - torch.exp(-SPEED / steps * state["age"])) / (1.0 - keep)
    enough = explained > (8.0 / samples).clamp(min=BELIEF) * (rest - explained).clamp(min=0.0)
    size = violation(state, bounds)
    most = torch.maximum(state["most"], state["mean"].abs())
    grown = most / torch.where(state["most"] > 0, state["most"], most).clamp_(min=TINY)
    state["most"].copy_(most)
    balance = scale / most.clamp(min=TINY) * (most > 0)
    # A multiplier that has hardly moved cannot be what moved the violation.
    moved = state["s_mm"] > samples * (FAINT * ROOM * balance).square()
    good = enough & (found > 0) & apart & (samples > 8) & moved
    unsure = state["sure"] == 0
    known = torch.where(unsure, state["response"] * grown.square(), state["response"])
    held = torch.where(known > 0, known, SPEED / steps * most.square() / scale)
    fallen = held * exp(at_most(FALL * omega, AT_ONCE) * -1.0)
    still = state["e_band"].abs() < STILL * size
    patient = (state["age"] > steps / 8) & (size > PATIENCE * most)
    stalled = still & patient & (state["level"].abs() <= ROOM * BEYOND * balance)
    response = torch.where(good, torch.maximum(found, fallen), torch.where(stalled, fallen, held))
    state["response"].copy_(response)
    # A belief fades within `steps` unless it is confirmed.
    state["sure"].copy_(torch.where(good, explained / rest.clamp(min=TINY), state["sure"] * keep))
    state["balance"].copy_(balance)


def _least_squares(state: State) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """B, what of y it explains, what E alone leaves of y, and whether Theta can be told from E at all."""
    ee, em, mm = state["s_ee"].clamp(min=TINY), state["s_em"], state["s_mm"]
    ye, ym, yy = state["s_ye"], state["s_ym"], state["s_yy"]
    mm_left, ym_left, yy_left = mm - em * em / ee, ym - ye * em / ee, yy - ye * ye / ee
    found = ym_left / mm_left.clamp(min=TINY)
    return found, ym_left * found, yy_left, mm_left > 1e-6 * mm
