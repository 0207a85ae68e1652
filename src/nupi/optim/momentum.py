"""UnifiedMomentum: gradient ascent with Polyak's or Nesterov's momentum, of either sign; and Theorem 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch

from nupi.optim.base import DualOptimizer, Gains, State
from nupi.optim.checks import check_smoothing, check_step_size
from nupi.rule import Gain, add_scaled_, subtract_scaled_

if TYPE_CHECKING:
    from collections.abc import Iterable


class NuPIGains(TypedDict):
    """The gains of a nuPI controller, ready for `NuPI(params, **gains)`."""

    ki: float
    kp: float
    nu: float


def as_nupi(alpha: float, beta: float, gamma: float) -> NuPIGains:
    """Theorem 1: the gains with which nuPI is UnifiedMomentum(alpha, beta, gamma), from `init="ema"` on.

        nu = beta;  ki = alpha / (1 - beta);  kp = -alpha beta / (1 - beta)^2 [1 - gamma (1 - beta)]

    Example:
        >>> as_nupi(alpha=0.5, beta=-0.5, gamma=0.0)  # negative Polyak momentum is a positive kp
        {'ki': 0.33, 'kp': 0.11, 'nu': -0.5}
    """
    if beta == 1:
        raise ValueError("beta=1 has no nuPI counterpart: its momentum never decays; take beta below 1")
    rest = 1.0 - beta
    return {"ki": alpha / rest, "kp": -alpha * beta / rest**2 * (1.0 - gamma * rest), "nu": beta}


class UnifiedMomentum(DualOptimizer):
    """Momentum in the form that holds Polyak's (gamma = 0) and Nesterov's (gamma = 1), and all between.

        phi_{t+1}   = beta phi_t + alpha e_t                                (phi_0 = 0)
        theta_{t+1} = theta_t + phi_{t+1} + beta gamma (phi_{t+1} - phi_t)

    Every such method is a nuPI controller (`as_nupi`), and with beta > 0 one with a negative kp: positive
    momentum takes damping away, which is why it makes multipliers oscillate more.

    Args:
        params: multipliers, or param groups with values of their own.
        lr: the step size alpha, >= 0.
        beta: the momentum, in (-1, 1); negative values damp.
        gamma: 0 for Polyak, 1 for Nesterov.
        maximize: multipliers ascend. False turns it into a minimizer.
        foreach: use the kernels that move many tensors in one call; by default, wherever they serve.
    """

    gain_names = ("lr", "beta", "gamma")
    slot_names = ("phi",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Gain,
        beta: Gain = 0.0,
        gamma: Gain = 0.0,
        *,
        maximize: bool = True,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "gamma": gamma, "maximize": maximize, "foreach": foreach}
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_step_size("lr", group["lr"])
        check_smoothing("beta", group["beta"])

    def _gains(self, group: dict[str, Any]) -> Gains:
        return {"alpha": group["lr"], "beta": group["beta"], "gamma": group["gamma"]}

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return () if isinstance(group["beta"], (int, float)) and group["beta"] == 0 else ("phi",)

    def _advance(
        self,
        group: dict[str, Any],  # noqa: ARG002
        theta: torch.Tensor,
        state: State,
        e: torch.Tensor,
        gains: Gains,
        *,
        fresh: bool,  # noqa: ARG002 - phi_0 = 0 needs no first step of its own
    ) -> None:
        if state:
            unified_momentum_(theta, state["phi"], e, gains["alpha"], gains["beta"], gains["gamma"])
        else:
            add_scaled_(theta, e, gains["alpha"])

    def _advance_foreach(
        self,
        group: dict[str, Any],
        thetas: list[torch.Tensor],
        states: list[State],
        errors: list[torch.Tensor],
        gains: Gains,
    ) -> None:
        alpha, beta, gamma = (cast("float", gains[name]) for name in ("alpha", "beta", "gamma"))
        if not self._slots(group):
            torch._foreach_add_(thetas, errors, alpha=alpha)
            return
        phis = [state["phi"] for state in states]
        torch._foreach_add_(thetas, phis, alpha=-beta * gamma)
        torch._foreach_mul_(phis, beta)
        torch._foreach_add_(phis, errors, alpha=alpha)
        torch._foreach_add_(thetas, phis, alpha=1.0 + beta * gamma)


def unified_momentum_(
    theta: torch.Tensor, phi: torch.Tensor, e: torch.Tensor, alpha: Gain, beta: Gain, gamma: Gain
) -> None:
    """One step of UnifiedMomentum, in place; the gains are numbers or broadcast to `theta`."""
    overshoot = beta * gamma
    subtract_scaled_(theta, phi, overshoot)
    phi.mul_(beta)
    add_scaled_(phi, e, alpha)
    add_scaled_(theta, phi, 1.0 + overshoot)
