"""Optimizers as batched rules: their own updates, with one gain per setting in the last dimension.

In a batch of S settings the multipliers are a matrix (constraints, S) and a gain is a vector (S); the updates broadcast
them. Any `DualOptimizer` can be a rule (`DualRule`). Torch's SGD and Adam have no update function to call, so they are
written out here, for the multipliers and for x.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from nupi.optim.base import DualOptimizer
from nupi.rule import Gain, add_scaled_

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nupi.constraints import Bounds

Gains: TypeAlias = "dict[str, Gain]"
State: TypeAlias = "dict[str, torch.Tensor]"


class Rule(ABC):
    """How the multipliers, or x, of a block of settings move in a step.

    Args:
        options: the optimizer's options, one dict per setting of the block, in the order of its columns.
    """

    refused: ClassVar[Mapping[str, object]] = {}
    """Options for which a sweep supports only one value."""

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        self.options = options

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:  # noqa: ARG003 - for subclasses
        """Settings of equal kind may share a block."""
        return ()

    @abstractmethod
    def slots(self, bounds: Bounds | None) -> tuple[str, ...]:
        """The names of the state tensors, each of the shape of what moves."""

    @abstractmethod
    def gains(self) -> dict[str, list[float]]:
        """The gains of each setting, already multiplied by `lr` where it scales them."""

    def powers(self) -> dict[str, float]:
        """State with one number per setting, and its starting value."""
        return {}

    @abstractmethod
    def move_(
        self,
        theta: torch.Tensor,
        e: torch.Tensor,
        gains: Gains,
        state: State,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """Move multipliers by one step and project them, in place. No branch depends on a value."""


class DualRule(Rule):
    """The rule of any dual optimizer of nupi or of a user; its update also works on a batch."""

    optimizer: ClassVar[type[DualOptimizer]]

    @classmethod
    def of(cls, optimizer: type[DualOptimizer]) -> type[DualRule]:
        """The rule of a class of dual optimizers."""
        return type(f"{optimizer.__name__}Rule", (cls,), {"optimizer": optimizer})

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:
        """The options that settings of a block must share: all that are not numbers."""
        ignored = (*cls.optimizer.gain_names, "maximize", "foreach")
        return tuple(value for name, value in sorted(options.items()) if name not in ignored)

    def slots(self, bounds: Bounds | None) -> tuple[str, ...]:
        """The state tensors of the optimizer."""
        return self.optimizer.slots(self.options[0], bounds)

    def gains(self) -> dict[str, list[float]]:
        """The gains of the optimizer, for each setting."""
        each = [self.optimizer.scaled_gains(options) for options in self.options]
        return {name: [float(gains[name]) for gains in each] for name in each[0]}

    def move_(
        self,
        theta: torch.Tensor,
        e: torch.Tensor,
        gains: Gains,
        state: State,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """Take the optimizer's own step."""
        self.optimizer.move(theta, {**state}, e, gains, self.options[0], bounds, first=first)


class TorchRule(Rule):
    """An optimizer of torch, for multipliers and for x."""

    def move_(
        self,
        theta: torch.Tensor,
        e: torch.Tensor,
        gains: Gains,
        state: State,
        bounds: Bounds | None,
        *,
        first: bool,  # noqa: ARG002 - its first step is like any other
    ) -> None:
        """Take a step of ascent and project."""
        self.step_(theta, e, gains, state, sign=1.0)
        if bounds is not None:
            bounds.project_(theta, e)

    @abstractmethod
    def step_(
        self, theta: torch.Tensor, gradient: torch.Tensor, gains: Gains, state: State, *, sign: float
    ) -> None:
        """Take one step of descent (`sign` -1) or ascent (1)."""


class SGDRule(TorchRule):
    """torch's gradient steps with momentum."""

    refused: ClassVar[Mapping[str, object]] = {"dampening": 0, "weight_decay": 0}

    @classmethod
    def kind(cls, options: dict[str, Any]) -> tuple[object, ...]:
        """What must be equal for settings to share a block."""
        return (options["nesterov"],)

    def slots(self, bounds: Bounds | None) -> tuple[str, ...]:  # noqa: ARG002
        """The momentum."""
        return ("buffer",)

    def gains(self) -> dict[str, list[float]]:
        """The numbers of each setting."""
        return {name: [o[name] for o in self.options] for name in ("lr", "momentum")}

    def step_(
        self, theta: torch.Tensor, gradient: torch.Tensor, gains: Gains, state: State, *, sign: float
    ) -> None:
        """One step.

        buffer = momentum buffer + g;  theta += sign lr buffer, or sign lr (g + momentum buffer) for Nesterov
        """
        buffer = state["buffer"]
        buffer.mul_(gains["momentum"]).add_(gradient)
        direction = gradient + gains["momentum"] * buffer if self.options[0]["nesterov"] else buffer
        add_scaled_(theta, direction, sign * gains["lr"])


class AdamRule(TorchRule):
    """torch's Adam; the running powers of its two decay rates are state, one number per setting."""

    refused: ClassVar[Mapping[str, object]] = {"weight_decay": 0, "amsgrad": False}

    def slots(self, bounds: Bounds | None) -> tuple[str, ...]:  # noqa: ARG002
        """The two moving averages."""
        return ("mean", "square")

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

    def step_(
        self, theta: torch.Tensor, gradient: torch.Tensor, gains: Gains, state: State, *, sign: float
    ) -> None:
        """One step; mean and square are moving averages of g and g^2, each over 1 - beta^t.

        theta += sign lr mean / (sqrt(square) + eps)
        """
        beta1, beta2 = gains["beta1"], gains["beta2"]
        state["power1"].mul_(beta1)
        state["power2"].mul_(beta2)
        state["mean"].lerp_(gradient, 1.0 - beta1)
        state["square"].lerp_(gradient.square(), 1.0 - beta2)
        scale = state["square"].sqrt().div_((1.0 - state["power2"]).sqrt()).add_(gains["eps"])
        step = sign * gains["lr"] / (1.0 - state["power1"])
        add_scaled_(theta, state["mean"] / scale, step)


TORCH_RULES: dict[type[torch.optim.Optimizer], type[TorchRule]] = {
    torch.optim.SGD: SGDRule,
    torch.optim.Adam: AdamRule,
}


_MADE: dict[type[DualOptimizer], type[DualRule]] = {}  # made once, because a sweep asks for every setting


def rule_of(optimizer: type[torch.optim.Optimizer]) -> type[Rule] | None:
    """The rule of an optimizer class, or None if a sweep cannot batch it."""
    if issubclass(optimizer, DualOptimizer):
        if optimizer not in _MADE:
            _MADE[optimizer] = DualRule.of(optimizer)
        return _MADE[optimizer]
    return TORCH_RULES.get(optimizer)
