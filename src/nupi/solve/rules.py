"""Dual optimizers as batched rules: the same kernels, with a gain per setting in the last dimension.

In a batch of S settings the multipliers are a matrix (constraints, S) and a gain is a vector (S): every
kernel of the library broadcasts the one against the other. A rule says which torch optimizer it stands for,
what of that optimizer's options is a number per setting, what must be equal for settings to share a block,
and how a block moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from nupi import rule
from nupi.optim.momentum import UnifiedMomentum, unified_momentum_
from nupi.optim.nupi import NuPI
from nupi.optim.pid import PID, pid_, unwind_

if TYPE_CHECKING:
    from collections.abc import Sequence

Gains: TypeAlias = "dict[str, rule.Gain]"
State: TypeAlias = "dict[str, torch.Tensor]"


class Rule(ABC):
    """One kind of dual update for a block of settings.

    Args:
        options: the optimizer's options, one dict per setting of the block, in the order of its columns.
    """

    optimizer: type[torch.optim.Optimizer]
    slots: tuple[str, ...] = ()  # the names of the state tensors, each shaped like the multipliers
    refused: ClassVar[dict[str, object]] = {}  # options that a sweep takes at one value only

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        self.options = options

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:  # noqa: ARG003 - for subclasses
        """Settings of equal kind may stand in one block."""
        return ()

    @abstractmethod
    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting, with `lr` multiplied in where it scales others."""

    def powers(self) -> dict[str, float]:
        """State that is one number per setting, with the value it starts from."""
        return {}

    def first_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Move the block by its first step."""
        self.step_(theta, e, gains, state)

    @abstractmethod
    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Move the block by any later step, in place, without a look at a value."""

    def unwind_(self, theta: torch.Tensor, integral: torch.Tensor) -> None:
        """Keep an integral that is apart from theta from winding up where a projection is about to bite."""
        rule.project_integral_(theta, integral)


class NuPIRule(Rule):
    """nuPI in either form. Settings with different initial conditions share all but the first step."""

    optimizer = NuPI

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        super().__init__(options)
        self.positional = options[0]["form"] == "positional"
        self.slots = ("xi", "integral") if self.positional else ("xi",)

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:
        """What must be equal for settings to share a block."""
        return (options["form"],)

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        return {
            "ki": [o["lr"] * o["ki"] for o in self.options],
            "kp": [o["lr"] * o["kp"] for o in self.options],
            "weight": [1.0 - o["nu"] for o in self.options],
        }

    def first_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Set the initial condition and take the first step."""
        for init in dict.fromkeys(o["init"] for o in self.options):
            members = [i for i, o in enumerate(self.options) if o["init"] == init]
            columns = torch.tensor(members, device=theta.device)
            whole = {**gains, **state}
            part = {name: t[..., columns] for name, t in whole.items() if isinstance(t, torch.Tensor)}
            moved, seen, xi = theta[:, columns], e[:, columns], part["xi"]
            integral = part.get("integral")
            nu = 1.0 - part["weight"]
            weight = rule.open_(moved, xi, integral, seen, part["kp"], nu, init)
            if integral is None:
                rule.velocity_(moved, xi, seen, part["ki"], part["kp"], weight)
            else:
                rule.positional_(moved, xi, integral, seen, part["ki"], part["kp"], weight)
                state["integral"][:, columns] = integral
            theta[:, columns] = moved
            state["xi"][:, columns] = xi

    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Take any later step."""
        ki, kp, weight = gains["ki"], gains["kp"], gains["weight"]
        if self.positional:
            rule.positional_(theta, state["xi"], state["integral"], e, ki, kp, weight)
        else:
            rule.velocity_(theta, state["xi"], e, ki, kp, weight)


class MomentumRule(Rule):
    """UnifiedMomentum: Polyak, Nesterov and all between."""

    optimizer = UnifiedMomentum
    slots = ("phi",)

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        return {name: [o[name] for o in self.options] for name in ("lr", "beta", "gamma")}

    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Take any later step."""
        unified_momentum_(theta, state["phi"], e, gains["lr"], gains["beta"], gains["gamma"])


class PIDRule(Rule):
    """The PID controller of Stooke et al. (2020)."""

    optimizer = PID
    slots = ("xi", "integral")

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        super().__init__(options)
        self.one_sided = bool(options[0]["one_sided"])

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:
        """What must be equal for settings to share a block."""
        return (options["one_sided"],)

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        scaled = {name: [o["lr"] * o[name] for o in self.options] for name in ("ki", "kp", "kd")}
        return scaled | {"weight": [1.0 - o["nu"] for o in self.options]}

    def first_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Set the initial condition and take the first step."""
        state["xi"].copy_(e)
        state["integral"].copy_(theta)
        self.step_(theta, e, gains, state)

    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Take any later step."""
        ki, kp, kd, weight = (gains[name] for name in ("ki", "kp", "kd", "weight"))
        pid_(theta, state["xi"], state["integral"], e, ki, kp, kd, weight, one_sided=self.one_sided)

    def unwind_(self, theta: torch.Tensor, integral: torch.Tensor) -> None:
        """Project the integral, and theta with it."""
        unwind_(theta, integral)


class SGDRule(Rule):
    """torch's gradient steps with momentum; multipliers ascend, so `step_` takes -e for the gradient."""

    optimizer = torch.optim.SGD
    slots = ("buffer",)
    refused: ClassVar[dict[str, object]] = {"dampening": 0, "weight_decay": 0}

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        super().__init__(options)
        self.nesterov = bool(options[0]["nesterov"])

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:
        """What must be equal for settings to share a block."""
        return (options["nesterov"],)

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        return {name: [o[name] for o in self.options] for name in ("lr", "momentum")}

    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Take any later step."""
        self.move_(theta, e, gains, state, sign=1.0)

    def move_(
        self, theta: torch.Tensor, gradient: torch.Tensor, gains: Gains, state: State, *, sign: float
    ) -> None:
        """One step of gradient descent or ascent, by its `sign`.

        buffer = momentum buffer + g;  theta += sign lr buffer, or sign lr (g + momentum buffer) for Nesterov
        """
        buffer = state["buffer"]
        buffer.mul_(gains["momentum"]).add_(gradient)
        direction = gradient + gains["momentum"] * buffer if self.nesterov else buffer
        rule.add_scaled_(theta, direction, sign * gains["lr"])


class AdamRule(Rule):
    """torch's Adam; the running powers of its two decay rates are state, one number per setting."""

    optimizer = torch.optim.Adam
    slots = ("mean", "square")
    refused: ClassVar[dict[str, object]] = {"weight_decay": 0, "amsgrad": False}

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        return {
            "lr": [o["lr"] for o in self.options],
            "beta1": [o["betas"][0] for o in self.options],
            "beta2": [o["betas"][1] for o in self.options],
            "eps": [o["eps"] for o in self.options],
        }

    def powers(self) -> dict[str, float]:
        """Running powers of the decay rates."""
        return {"power1": 1.0, "power2": 1.0}

    def step_(self, theta: torch.Tensor, e: torch.Tensor, gains: Gains, state: State) -> None:
        """Take any later step."""
        self.move_(theta, e, gains, state, sign=1.0)

    def move_(
        self, theta: torch.Tensor, gradient: torch.Tensor, gains: Gains, state: State, *, sign: float
    ) -> None:
        """One step of Adam; mean and square are moving averages of g and g^2, each over 1 - beta^t.

        theta += sign lr mean / (sqrt(square) + eps)
        """
        beta1, beta2 = gains["beta1"], gains["beta2"]
        state["power1"].mul_(beta1)
        state["power2"].mul_(beta2)
        state["mean"].lerp_(gradient, 1.0 - beta1)
        state["square"].lerp_(gradient.square(), 1.0 - beta2)
        scale = state["square"].sqrt().div_((1.0 - state["power2"]).sqrt()).add_(gains["eps"])
        step = sign * gains["lr"] / (1.0 - state["power1"])
        rule.add_scaled_(theta, state["mean"] / scale, step)


RULES: tuple[type[Rule], ...] = (NuPIRule, MomentumRule, PIDRule, SGDRule, AdamRule)
