"""nuPI, the PI controller with a smoothed proportional term, as a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi import rule
from nupi.optim.base import DualOptimizer, Gains, Options, State, pointwise
from nupi.optim.checks import check_smoothing, check_step_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from nupi.constraints import Bounds


class NuPI(DualOptimizer):
    """The nuPI controller for Lagrange multipliers.

    With the error e_t (a multiplier's gradient: its constraint violation),

        xi_t        = nu xi_{t-1} + (1 - nu) e_t
        theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})

    `ki` is the step size of gradient ascent; with kp = 0 the rule is gradient ascent. `kp` adds damping: raise it
    until the multipliers stop oscillating. `nu` smooths a noisy error; keep it at 0 if violations are exact.

    Args:
        params: multipliers, or param groups with their own gains.
        ki: the integral gain, >= 0; a number, or a tensor that broadcasts to each parameter (a gain per
            constraint). `kp` and `nu` may be tensors too.
        kp: the proportional gain, of either sign. If it is the number 0, no state is kept.
        nu: the smoothing of the proportional term, in (-1, 1).
        lr: scales both gains, for `torch.optim.lr_scheduler`.
        init: the initial condition. "bumpless" is the one of the paper's experiments: the first step is that of
            gradient ascent, and no later step jumps. "zero", "error" and "ema" are for comparisons; with "ema",
            momentum is a special case. `nupi.rule` describes all four.
        form: what happens at the bounds of an inequality's multiplier. "conditional" stops integrating there, so
            noise around a satisfied constraint does not keep its multiplier above 0. "velocity" integrates the
            projected multiplier. "positional" is Algorithm 1. For equalities the three are the same.
        maximize: multipliers ascend. False turns the controller into a minimizer.
        foreach: whether to use kernels that move many tensors in one call; by default wherever possible.

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
    slot_names = ("xi", "integral", "beyond")
    integrators = ("integral", "beyond")
    late_slots = ("beyond",)

    def __init__(
        self,
        params: Iterable[Any],
        ki: rule.Gain,
        kp: rule.Gain = 0.0,
        nu: rule.Gain = 0.0,
        *,
        lr: float | torch.Tensor = 1.0,
        init: rule.Init = "bumpless",
        form: rule.Form = "conditional",
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

    @staticmethod
    def scaled_gains(options: Options) -> Gains:
        """The integral and proportional gains, and the weight of a new error in xi."""
        lr, ki, kp = options["lr"], options["ki"], options["kp"]
        if type(lr) is not float or lr != 1.0:
            ki, kp = lr * ki, lr * kp
        return {"ki": ki, "kp": kp, "weight": 1.0 - options["nu"]}

    @staticmethod
    def slots(options: Options, bounds: Bounds | None) -> tuple[str, ...]:
        """The smoothed error, and the state that the form needs for the integral."""
        if options["form"] == "positional":
            return ("xi", "integral")
        return ("xi",) if bounds is None or options["form"] == "velocity" else ("xi", "beyond")

    @staticmethod
    def idle(options: Options) -> bool:
        """At kp = 0 the rule is gradient ascent, which has no state."""
        return isinstance(options["kp"], (int, float)) and options["kp"] == 0

    @staticmethod
    @pointwise
    def update(
        theta: rule.Tensors,
        state: State,
        e: rule.Tensors,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """One step, in the form that `options` names."""
        ki, kp, weight = gains["ki"], gains["kp"], gains["weight"]
        if not state:
            rule.integral_(theta, e, ki)
            return
        xi, form = state["xi"], options["form"]
        if first:
            weight = rule.open_(theta, xi, state.get("integral"), e, kp, weight, options["init"])
        if form == "positional":
            rule.positional_(theta, xi, state["integral"], e, ki, kp, weight, bounds)
        elif form == "conditional" and bounds is not None:
            rule.conditional_(theta, xi, state["beyond"], e, ki, kp, weight, bounds)
        else:
            rule.velocity_(theta, xi, e, ki, kp, weight)
