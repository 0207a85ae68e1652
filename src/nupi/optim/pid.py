"""A PID controller for multipliers in the manner of Stooke et al. (2020), to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from nupi.optim.base import DualOptimizer, Gains, State
from nupi.optim.checks import check_smoothing, check_step_size
from nupi.rule import Gain, add_scaled_

if TYPE_CHECKING:
    from collections.abc import Iterable


class PID(DualOptimizer):
    """The PID Lagrangian controller of Stooke, Achiam and Abbeel (2020), in positional form.

        xi_t        = nu xi_{t-1} + (1 - nu) e_t                            (xi_{-1} = e_0)
        integral_t  = integral_{t-1} + ki e_t                               (integral_{-1} = theta_0)
        theta_{t+1} = integral_t + kp xi_t + kd max(0, xi_t - xi_{t-1})

    For an inequality constraint the integral too is projected to >= 0 at every step, and theta with it. The
    derivative term answers only a violation that grows, as in their paper; `one_sided=False` makes it answer both
    ways, which is what an equality constraint wants. It starts from no change. At kd = 0, and until a projection
    bites, this is `NuPI(form="positional", init="error")`.

    Args:
        params: multipliers, or param groups with gains of their own.
        ki: the integral gain, >= 0; gains are numbers, or tensors that broadcast to each parameter.
        kp: the proportional gain.
        kd: the derivative gain.
        nu: smoothing of the error that the proportional and derivative terms see, in (-1, 1).
        lr: scales the three gains, for schedulers.
        one_sided: whether the derivative term ignores a violation that shrinks.
        maximize: multipliers ascend. False turns the controller into a minimizer.
        foreach: use the kernels that move many tensors in one call; by default, wherever they serve.
    """

    gain_names = ("lr", "ki", "kp", "kd", "nu")
    slot_names = ("xi", "integral")

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

    def _gains(self, group: dict[str, Any]) -> Gains:
        lr = group["lr"]
        return {**{name: lr * group[name] for name in ("ki", "kp", "kd")}, "nu": group["nu"]}

    def _unwind_(self, theta: torch.Tensor, integral: torch.Tensor) -> None:
        unwind_(theta, integral)

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        return ("xi", "integral")

    def _advance(
        self,
        group: dict[str, Any],
        theta: torch.Tensor,
        state: State,
        e: torch.Tensor,
        gains: Gains,
        *,
        fresh: bool,
    ) -> None:
        xi, integral = state["xi"], state["integral"]
        if fresh:
            xi.copy_(e)
            integral.copy_(theta)
        ki, kp, kd, weight = gains["ki"], gains["kp"], gains["kd"], 1.0 - gains["nu"]
        pid_(theta, xi, integral, e, ki, kp, kd, weight, one_sided=group["one_sided"])

    def _advance_foreach(
        self,
        group: dict[str, Any],
        thetas: list[torch.Tensor],
        states: list[State],
        errors: list[torch.Tensor],
        gains: Gains,
    ) -> None:
        ki, kp, kd, nu = (cast("float", gains[name]) for name in ("ki", "kp", "kd", "nu"))
        xis = [state["xi"] for state in states]
        integrals = [state["integral"] for state in states]
        torch._foreach_copy_(thetas, errors)
        torch._foreach_sub_(thetas, xis)
        torch._foreach_mul_(thetas, 1.0 - nu)
        if group["one_sided"]:
            torch._foreach_clamp_min_(thetas, 0.0)
        torch._foreach_mul_(thetas, kd)
        torch._foreach_lerp_(xis, errors, 1.0 - nu)
        torch._foreach_add_(thetas, xis, alpha=kp)
        torch._foreach_add_(integrals, errors, alpha=ki)
        torch._foreach_add_(thetas, integrals)


def unwind_(theta: torch.Tensor, integral: torch.Tensor) -> None:
    """Project the integral to >= 0, in place, and lift theta by as much: theta had it in."""
    theta.sub_(integral.clamp(max=0))
    integral.clamp_(min=0)


def pid_(
    theta: torch.Tensor,
    xi: torch.Tensor,
    integral: torch.Tensor,
    e: torch.Tensor,
    ki: Gain,
    kp: Gain,
    kd: Gain,
    weight: Gain,
    *,
    one_sided: bool = True,
) -> None:
    """One step of the PID controller, in place; `weight` is 1 - nu, so weight (e - xi) is xi's own change."""
    theta.copy_(e).sub_(xi).mul_(weight)
    if one_sided:
        theta.clamp_(min=0)
    theta.mul_(kd)
    xi.lerp_(e, weight)
    add_scaled_(theta, xi, kp)
    add_scaled_(integral, e, ki)
    theta.add_(integral)
