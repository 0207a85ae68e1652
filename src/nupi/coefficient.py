"""One coefficient that keeps one metric at a target, for a loss that somebody else has written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.constraints import Equality, Inequality
from nupi.lagrangian import Lagrangian
from nupi.optim.self_tuned import Found, SelfTuned

if TYPE_CHECKING:
    from nupi.violations.base import Reduce


class Coefficient:
    """The weight of a metric in a loss, moved so that the metric comes to its target.

    For code that has a `beta` in its loss, such as `loss + beta * kl`. Say where the metric should be instead of how
    much it should weigh. Behind it stands one constraint and `SelfTuned` without a primal optimizer, so it needs
    nothing but the metric's value.

    Give exactly one of the three targets. The coefficient of a metric that is held at a value takes either sign,
    that of an upper bound is >= 0, and that of a lower bound is <= 0: it is always `+ beta * metric` in the loss.

    Args:
        at: the value that the metric should have.
        at_most: the upper bound of the metric.
        at_least: the lower bound of the metric.
        steps: updates within which the metric should be there; a quarter of training is a good answer.
        scale: the size of the loss, which sets how far the first steps go.
        init: the coefficient to start from.
        reduce: in a run of many processes, how to join what the ranks measured: "mean" or "sum".

    Example:
        >>> coefficient = Coefficient(at_most=2.0, steps=100)
        >>> metric = torch.tensor(3.0)
        >>> beta = coefficient.update(metric)
        >>> beta > 0
        tensor(True)
    """

    def __init__(
        self,
        *,
        at: float | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
        steps: float,
        scale: float = 1.0,
        init: float = 0.0,
        reduce: Reduce | None = None,
    ) -> None:
        given = {
            name: value
            for name, value in (("at", at), ("at_most", at_most), ("at_least", at_least))
            if value is not None
        }
        if len(given) != 1:
            came = ", ".join(f"{name}={value}" for name, value in given.items()) or "none of them"
            raise ValueError(f"give exactly one of at, at_most and at_least, but {came} came")
        ((side, target),) = given.items()
        if not isinstance(target, (int, float)) or not abs(target) < float("inf"):
            raise ValueError(f"{side} must be a finite number, but {target!r} came")
        self.target = float(target)
        self._sign = -1.0 if side == "at_least" else 1.0
        start = self._sign * init
        if side != "at" and start < 0:
            which = "<= 0" if side == "at_least" else ">= 0"
            raise ValueError(f"init={init!r}: the coefficient of {side} is {which}; start it at 0")
        kind = Equality if side == "at" else Inequality
        self._lagrangian = Lagrangian({"metric": kind(init=start)}, reduce=reduce)
        self._dual = SelfTuned(self._lagrangian.parameters(), steps, scale=scale)

    @property
    def value(self) -> torch.Tensor:
        """The coefficient as it is now, a scalar."""
        return self._sign * self._lagrangian.multipliers["metric"][0]

    def update(self, metric: float | torch.Tensor) -> torch.Tensor:
        """Move the coefficient by what the metric is now, and return it; no gradient flows through it.

        Args:
            metric: its value: a number, or a tensor with one element, on any device.
        """
        measured = torch.as_tensor(metric).detach()
        if measured.numel() != 1:
            raise ValueError(
                f"metric must be one number, but its shape is {tuple(measured.shape)}; take its mean"
            )
        if not measured.is_floating_point():
            measured = measured.float()
        multiplier = self._lagrangian.get_parameter("metric")
        if measured.device != multiplier.device:
            self._lagrangian.to(measured.device)
        violation = self._sign * (measured.reshape(1).to(multiplier.dtype) - self.target)
        self._lagrangian.ascend(self._dual, {"metric": violation})
        return self.value

    def gains(self) -> Found:
        """What has been found about the metric's response to its coefficient."""
        (found,) = self._dual.gains().values()
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on bit for bit."""
        return {"multiplier": self._lagrangian.state_dict(), "controller": self._dual.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if set(state) != {"multiplier", "controller"}:
            raise ValueError(
                f"state has the keys {sorted(state)}, not 'multiplier' and 'controller'; "
                "pass what state_dict() of a Coefficient returned. Nothing was loaded"
            )
        before = self._dual.state_dict()
        self._dual.load_state_dict(state["controller"])
        try:
            self._lagrangian.load_state_dict(state["multiplier"])
        except Exception:
            self._dual.load_state_dict(before)
            raise

    def __repr__(self) -> str:
        return f"Coefficient(target={self.target:g}, value={self.value.item():g})"
