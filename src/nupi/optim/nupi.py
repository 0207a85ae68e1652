"""nuPI, the PI controller with a smoothed proportional term, as a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from nupi import rule
from nupi.optim.base import DualOptimizer, Gains, State
from nupi.optim.checks import check_smoothing, check_step_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class NuPI(DualOptimizer):
    """The nuPI controller for Lagrange multipliers.

    With the error e_t (a multiplier's gradient: its constraint violation),

        xi_t        = nu xi_{t-1} + (1 - nu) e_t
        theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})

    `ki` is the step size of gradient ascent, which is what remains at kp = 0. `kp` adds damping: raise it
    until the multipliers stop oscillating. `nu` smooths a noisy error; keep it 0 where violations are exact.

    Args:
        params: multipliers, or param groups with gains of their own.
        ki: the integral gain, >= 0; a number, or a tensor that broadcasts to each parameter (a gain per
            constraint). Tensors may stand for `kp` and `nu` too.
        kp: the proportional gain, of either sign. Where it is the number 0 no state is kept.
        nu: the smoothing of the proportional term, in (-1, 1).
        lr: scales both gains; it is there for `torch.optim.lr_scheduler`.
        init: the initial condition; the four of them are four controllers (see `nupi.rule`).
            "zero" is the paper's, "ema" the one that realises momentum, "bumpless" the gentlest.
        form: "velocity" integrates the projected multiplier. "positional" is Algorithm 1, with its integral
            kept from winding up where the multiplier is projected to zero. The two differ only for
            inequality constraints; see docs/choosing.md for when to take which.
        maximize: multipliers ascend. False turns the controller into a minimizer.
        foreach: use the kernels that move many tensors in one call; by default, wherever they serve.

    Example:
        >>> import torch
        >>> multiplier = torch.zeros(1)
        >>> dual = NuPI([multiplier], ki=0.1, kp=1.0, init="error")
        >>> for violation in (1.0, 0.5):
        ...     multiplier.grad = torch.tensor([violation])
        ...     dual.step()
        ...     print(f"{multiplier.item():.2f}")
        1.10
        0.65
    """

    gain_names = ("lr", "ki", "kp", "nu")
    slot_names = ("xi", "integral")

    def __init__(
        self,
        params: Iterable[Any],
        ki: rule.Gain,
        kp: rule.Gain = 0.0,
        nu: rule.Gain = 0.0,
        *,
        lr: float | torch.Tensor = 1.0,
        init: rule.Init = "zero",
        form: rule.Form = "velocity",
        maximize: bool = True,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "ki": ki, "kp": kp, "nu": nu, "init": init, "form": form}
        super().__init__(params, {**defaults, "maximize": maximize, "foreach": foreach})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["init"] not in rule.INITS:
            raise ValueError(f"init must be one of {', '.join(rule.INITS)}, but {group['init']!r} came")
        if group["form"] not in rule.FORMS:
            raise ValueError(f"form must be one of {', '.join(rule.FORMS)}, but {group['form']!r} came")
        check_step_size("ki", group["ki"])
        check_smoothing("nu", group["nu"])
        check_step_size("lr", group["lr"])

    def _gains(self, group: dict[str, Any]) -> Gains:
        lr, ki, kp = group["lr"], group["ki"], group["kp"]
        if type(lr) is not float or lr != 1.0:
            ki, kp = lr * ki, lr * kp
        return {"ki": ki, "kp": kp, "nu": group["nu"]}

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        if isinstance(group["kp"], (int, float)) and group["kp"] == 0:
            return ()
        return ("xi",) if group["form"] == "velocity" else ("xi", "integral")

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
        ki, kp, nu = gains["ki"], gains["kp"], gains["nu"]
        if not state:
            rule.integral_(theta, e, ki)
            return
        xi, integral = state["xi"], state.get("integral")
        weight = 1.0 - nu
        if fresh:
            weight = rule.open_(theta, xi, integral, e, kp, nu, group["init"])
        if integral is None:
            rule.velocity_(theta, xi, e, ki, kp, weight)
        else:
            rule.positional_(theta, xi, integral, e, ki, kp, weight)

    def _advance_foreach(
        self,
        group: dict[str, Any],
        thetas: list[torch.Tensor],
        states: list[State],
        errors: list[torch.Tensor],
        gains: Gains,
    ) -> None:
        ki, kp, nu = (cast("float", gains[name]) for name in ("ki", "kp", "nu"))
        slots = self._slots(group)
        xis = [state["xi"] for state in states] if slots else []
        if not slots:
            rule.integral_foreach_(thetas, errors, ki)
        elif group["form"] == "velocity":
            rule.velocity_foreach_(thetas, xis, errors, ki, kp, 1.0 - nu)
        else:
            integrals = [state["integral"] for state in states]
            rule.positional_foreach_(thetas, xis, integrals, errors, ki, kp, 1.0 - nu)
