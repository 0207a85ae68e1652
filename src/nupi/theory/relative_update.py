"""Compare a step of nuPI with one of gradient ascent: the ratio of the steps, and its three modes.

Both start from the same multiplier, with the same violation e_t and the same ki. With
psi = kp (1 - nu) / (ki + kp (1 - nu)), where it is finite,

    nuPI step / gradient-ascent step = (1 - psi xi_{t-1} / e_t) / (1 - psi)

The ratio tends to 1 / (1 - psi) for large |e_t|, is 1 at e_t = xi_{t-1} and 0 at e_t = psi xi_{t-1}.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch

from nupi import rule


class UpdateMode(enum.IntEnum):
    """How nuPI's step compares with gradient ascent's.

    For xi > 0 and kp > 0: C on [0, psi xi), B on [psi xi, xi], and A elsewhere.
    """

    A = 0
    """Faster: in the same direction, by more."""
    B = 1
    """Slower: in the same direction, by less, or the same step."""
    C = 2
    """Opposite: in the other direction."""


class Steps(NamedTuple):
    """The steps that nuPI and gradient ascent take from the same state."""

    nupi: torch.Tensor
    ascent: torch.Tensor


def psi(ki: float, kp: float, nu: float = 0.0) -> float:
    """The share of the proportional term: kp (1 - nu) / (ki + kp (1 - nu)); within [0, 1] for gains >= 0.

    Example:
        >>> psi(ki=1.0, kp=1.0)
        0.5
    """
    damping = kp * (1.0 - nu)
    if ki + damping == 0.0:
        raise ValueError(
            f"psi is infinite at ki={ki}, kp={kp}, nu={nu}, where ki + kp(1 - nu) = 0; "
            "use relative_update, which is defined there"
        )
    return damping / (ki + damping)


def steps(e: torch.Tensor, xi: torch.Tensor, ki: rule.Gain, kp: rule.Gain, nu: rule.Gain = 0.0) -> Steps:
    """The steps of nuPI and of gradient ascent for a violation e_t after a history xi_{t-1}.

    Args:
        e: the violation e_t.
        xi: the smoothed violation xi_{t-1}; broadcasts against `e`.
        ki: the integral gain, and the step size of gradient ascent.
        kp: the proportional gain, of either sign.
        nu: the smoothing.
    """
    both = e + xi
    e, xi = e.to(both).expand_as(both), xi.to(both).expand_as(both).clone()
    nupi, ascent = torch.zeros_like(e), torch.zeros_like(e)
    rule.velocity_(nupi, xi, e, ki, kp, 1.0 - nu)
    rule.integral_(ascent, e, ki)
    return Steps(nupi, ascent)


def relative_update(
    e: torch.Tensor, xi: torch.Tensor, ki: rule.Gain, kp: rule.Gain, nu: rule.Gain = 0.0
) -> torch.Tensor:
    """NuPI's step divided by that of gradient ascent; infinite or nan at e = 0, where the latter is 0.

    Example:
        >>> relative_update(torch.tensor([0.25, 0.5, 1.0, 2.0]), torch.tensor(1.0), ki=1.0, kp=1.0)
        tensor([-2.0000,  0.0000,  1.0000,  1.5000])
    """
    both = steps(e, xi, ki, kp, nu)
    return both.nupi / both.ascent


def modes(
    e: torch.Tensor, xi: torch.Tensor, ki: rule.Gain, kp: rule.Gain, nu: rule.Gain = 0.0
) -> torch.Tensor:
    """The mode of every pair (e, xi), as the integers of `UpdateMode`, for any signs of e, xi and kp.

    It compares steps, not intervals of e, so there are no special cases. At e = 0 the step of gradient ascent is 0, and
    any step of nuPI counts as faster (A).

    Example:
        >>> modes(torch.tensor([-1.0, 0.25, 0.7, 2.0]), torch.tensor(1.0), ki=1.0, kp=1.0).tolist()
        [0, 2, 1, 0]
    """
    nupi, ascent = steps(e, xi, ki, kp, nu)
    opposite = nupi * ascent.sign() < 0
    faster = ~opposite & (nupi.abs() > ascent.abs())
    mode = torch.full(nupi.shape, int(UpdateMode.B), device=nupi.device)
    return mode.masked_fill(faster, int(UpdateMode.A)).masked_fill(opposite, int(UpdateMode.C))
