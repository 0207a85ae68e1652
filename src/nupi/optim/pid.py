"""A PID controller for multipliers as in Stooke et al. (2020), for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.optim.base import DualOptimizer, Gains, Options, State, pointwise
from nupi.optim.checks import check_smoothing, check_step_size
from nupi.rule import Gain, Tensors, add_scaled_, clamp_into_, copy_, lerp_, scale_

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from nupi.constraints import Bounds


class PID(DualOptimizer):
    """The PID Lagrangian controller of Stooke, Achiam and Abbeel (2020), in positional form.

        xi_t        = nu xi_{t-1} + (1 - nu) e_t                            (xi_{-1} = e_0)
        integral_t  = integral_{t-1} + ki e_t                               (integral_{-1} = theta_0)
        theta_{t+1} = integral_t + kp xi_t + kd max(0, xi_t - xi_{t-1})

    For an inequality constraint both theta and the integral are projected to >= 0 at every step. The derivative term
    responds only to a violation that grows, as in their paper. With `one_sided=False` it responds to both directions,
    as an equality constraint needs. In the first step it is 0. At kd = 0, and as long as no projection changes
    anything, this is `NuPI(form="positional", init="error")`.

    Args:
        params: multipliers, or param groups with their own gains.
        ki: the integral gain, >= 0; gains are numbers, or tensors that broadcast to each parameter.
        kp: the proportional gain.
        kd: the derivative gain.
        nu: the smoothing of the error in the proportional and derivative terms, in (-1, 1).
        lr: scales the three gains, for schedulers.
        one_sided: whether the derivative term ignores a violation that shrinks.
        maximize: multipliers ascend. False turns the controller into a minimizer.
        foreach: whether to use kernels that move many tensors in one call; by default wherever possible.

    Example:
        >>> import torch
        >>> multiplier = torch.zeros(1)
        >>> dual = PID([multiplier], ki=0.1, kp=1.0, kd=0.5)
        >>> for violation in (1.0, 1.5):
        ...     multiplier.grad = torch.tensor([violation])
        ...     dual.step()
        ...     print(f"{multiplier.item():.2f}")
        1.10
        2.00
    """

    gain_names = ("lr", "ki", "kp", "kd", "nu")
    slot_names = ("xi", "integral")
    integrators = ("integral",)

    def __init__(
        self,
        params: Iterable[Any],
        ki: Gain,
        kp: Gain = 0.0,
        kd: Gain = 0.0,
        *,
        nu: Gain = 0.0,
        lr: float | torch.Tensor = 1.0,
        one_sided: bool = True,
        maximize: bool = True,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "ki": ki, "kp": kp, "kd": kd, "nu": nu, "one_sided": one_sided}
        super().__init__(params, {**defaults, "maximize": maximize, "foreach": foreach})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_step_size("ki", group["ki"])
        check_smoothing("nu", group["nu"])
        check_step_size("lr", group["lr"])

    @staticmethod
    def scaled_gains(options: Options) -> Gains:
        """The three gains, and the weight of a new error in xi."""
        lr = options["lr"]
        return {**{name: lr * options[name] for name in ("ki", "kp", "kd")}, "weight": 1.0 - options["nu"]}

    @staticmethod
    def slots(options: Options, bounds: Bounds | None) -> tuple[str, ...]:  # noqa: ARG004
        """The smoothed error and the integral."""
        return ("xi", "integral")

    @staticmethod
    @pointwise
    def update(
        theta: Tensors,
        state: State,
        e: Tensors,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """One step. `weight` is 1 - nu, so weight (e - xi) is the change of xi."""
        xi, integral, weight = state["xi"], state["integral"], gains["weight"]
        if first:
            copy_(xi, e)
            copy_(integral, theta)
        copy_(theta, e)
        add_scaled_(theta, xi, -1.0)
        scale_(theta, weight)
        if options["one_sided"]:
            clamp_into_(theta, theta, 0.0, None)
        scale_(theta, gains["kd"])
        lerp_(xi, e, weight)
        add_scaled_(theta, xi, gains["kp"])
        add_scaled_(integral, e, gains["ki"])
        if bounds is not None:
            clamp_into_(integral, integral, bounds.lower, bounds.upper)
        add_scaled_(theta, integral, 1.0)
