"""UnifiedMomentum: gradient ascent with Polyak's or Nesterov's momentum, of either sign; and Theorem 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from nupi.optim.base import DualOptimizer, Gains, Options, State, pointwise
from nupi.optim.checks import check_smoothing, check_step_size
from nupi.rule import Gain, Tensors, add_scaled_, scale_

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nupi.constraints import Bounds


class NuPIGains(TypedDict):
    """The gains of a nuPI controller, ready for `NuPI(params, **gains)`."""

    ki: float
    kp: float
    nu: float


def as_nupi(alpha: float, beta: float, gamma: float) -> NuPIGains:
    """Theorem 1: the gains with which nuPI, from `init="ema"`, is UnifiedMomentum(alpha, beta, gamma).

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
    """Momentum in one form for Polyak's (gamma = 0), Nesterov's (gamma = 1), and all between.

        phi_{t+1}   = beta phi_t + alpha e_t                                (phi_0 = 0)
        theta_{t+1} = theta_t + phi_{t+1} + beta gamma (phi_{t+1} - phi_t)

    Every such method is a nuPI controller (`as_nupi`). With beta > 0 its kp is negative. So positive momentum reduces
    damping, and multipliers oscillate more.

    Args:
        params: multipliers, or param groups with their own options.
        lr: the step size alpha, >= 0.
        beta: the momentum, in (-1, 1); negative values add damping.
        gamma: 0 for Polyak, 1 for Nesterov.
        maximize: multipliers ascend. False turns it into a minimizer.
        foreach: whether to use kernels that move many tensors in one call; by default wherever possible.

    Example:
        >>> import torch
        >>> multiplier = torch.zeros(1)
        >>> dual = UnifiedMomentum([multiplier], lr=0.1, beta=0.5)
        >>> for violation in (1.0, 1.0):
        ...     multiplier.grad = torch.tensor([violation])
        ...     dual.step()
        ...     print(f"{multiplier.item():.2f}")
        0.10
        0.25
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

    @staticmethod
    def scaled_gains(options: Options) -> Gains:
        """The step size and the two constants of the momentum."""
        return {name: options[name] for name in ("lr", "beta", "gamma")}

    @staticmethod
    def slots(options: Options, bounds: Bounds | None) -> tuple[str, ...]:  # noqa: ARG004
        """The momentum."""
        return ("phi",)

    @staticmethod
    def idle(options: Options) -> bool:
        """At beta = 0 it is gradient ascent, which has no state."""
        return isinstance(options["beta"], (int, float)) and options["beta"] == 0

    @staticmethod
    @pointwise
    def update(
        theta: Tensors,
        state: State,
        e: Tensors,
        gains: Gains,
        options: Options,  # noqa: ARG004
        bounds: Bounds | None,  # noqa: ARG004
        *,
        first: bool,  # noqa: ARG004 - phi_0 = 0 needs no first step of its own
    ) -> None:
        """Theta -= beta gamma phi;  phi = beta phi + alpha e;  theta += (1 + beta gamma) phi."""
        alpha, beta, gamma = gains["lr"], gains["beta"], gains["gamma"]
        if not state:
            add_scaled_(theta, e, alpha)
            return
        phi, overshoot = state["phi"], beta * gamma
        add_scaled_(theta, phi, -overshoot)
        scale_(phi, beta)
        add_scaled_(phi, e, alpha)
        add_scaled_(theta, phi, 1.0 + overshoot)
