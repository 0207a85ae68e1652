"""One coefficient that keeps one metric at a target, for an existing loss."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from nupi.constraints import Bounds, Constraint
from nupi.lagrangian import Lagrangian
from nupi.optim.self_tuned import SelfTuned

if TYPE_CHECKING:
    from nupi.monitor import Finding, Monitor
    from nupi.optim.found import Found
    from nupi.violations.kind import Reduce

DECADES = (
    3.0  # with log=True: how many decades a coefficient is expected to move, for a metric at twice its target
)
MOST = 10.0  # with log=True: relative errors are clipped to this
WIDEST = (1e-8, 1e8)  # with log=True: the default limits
_KEPT = 2_000  # updates that are kept in full for `diagnose`


class Coefficient:
    """The weight of a metric in a loss, moved so that the metric comes to its target.

    For code with a `beta` in its loss, such as `loss + beta * kl`. You give the target of the metric, not its weight.
    Inside are one constraint and `SelfTuned` without a primal optimizer, so it needs only the value of the metric.

    Give exactly one of the three targets: `at`, `at_most` or `at_least`. With `at` the coefficient may have either
    sign. With `at_most` it is >= 0, and with `at_least` it is <= 0. In the loss it is always `+ beta * metric`.

    The dual optimizer moves beta by the error e = metric - target, so the metric settles at e = 0.

    With `log=True` it moves log |beta|, by the relative error e = (metric - target) / |target|. Take this if the
    coefficient must stay positive, or if you do not know its order of magnitude: a temperature, the weight of a KL.
    With `at_least` the coefficient then stays negative.

    Args:
        at: the value that the metric should have.
        at_most: the upper bound of the metric.
        at_least: the lower bound of the metric.
        steps: the number of updates within which the metric should reach its target; a quarter of the run is a good
            choice.
        scale: the size of the loss, which sets the size of the first steps. Not used with `log=True`.
        init: the initial coefficient. By default 0, and with `log=True` 1 (-1 for a lower bound); if `limits` exclude
            this value, the nearest one that they allow.
        log: whether to move the logarithm of the coefficient.
        limits: the smallest and the largest |beta|; either may be None. With `log=True` the default is 1e-8 and 1e8.
        reduce: with many processes, how to join the metrics of the ranks: "mean" or "sum".
        name: the name of the metric in findings.

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
        init: float | None = None,
        log: bool = False,
        limits: tuple[float | None, float | None] | None = None,
        reduce: Reduce | None = None,
        name: str = "metric",
    ) -> None:
        side, self.target = _checked_target({"at": at, "at_most": at_most, "at_least": at_least})
        self._sign = -1.0 if side == "at_least" else 1.0
        self._side, self._log, self._name = side, bool(log), name
        low, high = _checked_limits(limits, log=self._log)
        # By default as small as the limits allow, or 1 with log=True.
        usual = min(max(1.0 if log else 0.0, low or 0.0), math.inf if high is None else high)
        start = usual if init is None else self._sign * init
        if (log or side != "at") and (start < 0 or (log and start == 0)):
            which = ("<" if log else "<=") if side == "at_least" else (">" if log else ">=")
            instead = "" if log else "; start it at 0"
            raise ValueError(f"init={init!r}: the coefficient of {side} is {which} 0 here{instead}")
        if not (low or 0.0) <= abs(start) <= (math.inf if high is None else high):
            raise ValueError(f"init={init!r} is not within limits={limits!r}; start it there")
        # With log=True an error is relative to the target, so one unit means the same for every metric. `update`
        # keeps it below `MOST`; otherwise a metric that starts a hundred times too large would set the scale.
        self._unit = abs(self.target) if log and self.target else 1.0
        if log:
            low, high, start = math.log(low or WIDEST[0]), math.log(high or WIDEST[1]), math.log(start)
            scale = DECADES * math.log(10.0)
        elif side == "at":
            low = None if high is None else -high
        else:
            low = low or 0.0
        self._high = math.inf if high is None else math.exp(high) if log else high
        constraint = _Limited(Bounds(low, high, both=side == "at"), start)
        if low is None and high is None:
            constraint.bounds = None
        self._lagrangian = Lagrangian({name: constraint}, reduce=reduce)
        self._dual = SelfTuned(self._lagrangian.parameters(), steps, scale=scale)
        self._monitor = _listening(self._lagrangian)

    @property
    def value(self) -> torch.Tensor:
        """The present coefficient, a scalar."""
        size = self._lagrangian.multipliers[self._name][0]
        return self._sign * (size.exp() if self._log else size)

    def update(self, metric: float | torch.Tensor) -> torch.Tensor:
        """Move the coefficient by the present value of the metric, and return it. No gradient flows through it.

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
        multiplier = self._lagrangian.get_parameter(self._name)
        if measured.device != multiplier.device:
            self._lagrangian.to(measured.device)
        error = (measured.reshape(1).to(multiplier.dtype) - self.target) / self._unit
        if self._log:
            error = error / (1.0 + error.abs() / MOST)
        self._lagrangian.ascend(self._dual, {self._name: self._sign * error})
        return self.value

    def gains(self) -> Found:
        """What has been measured about the metric's response to its coefficient (with `log=True`: to its logarithm)."""
        (found,) = self._dual.gains().values()
        return found

    def diagnose(self) -> list[Finding]:
        """What is wrong, the worst first: a target that cannot be reached, a coefficient at its limit, and so on.

        Call it at the end of the run, or after a few times `steps`: earlier, the metric may not have arrived yet. With
        `log=True`, the multiplier in a finding is the logarithm of the coefficient, and violations are relative.
        """
        return [self._advised(finding) for finding in self._monitor.diagnose()]

    def _advised(self, finding: Finding) -> Finding:
        """The bound of the multiplier is the upper one of `limits` here."""
        if finding.kind != "capped":
            return finding
        raised = f"Raise the upper one of limits, {self._high:.3g}, to {10 * self._high:.3g} say"
        return replace(finding, advice=f"{raised}, or loosen the target")

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to continue bit for bit."""
        return {
            "multiplier": self._lagrangian.state_dict(),
            "controller": self._dual.state_dict(),
            "kind": self._kind,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. The target may be another number, on the same side (such as `at_most`)."""
        if set(state) != {"multiplier", "controller", "kind"}:
            raise ValueError(
                f"state has the keys {sorted(state)}, not 'multiplier', 'controller' and 'kind'; "
                "pass what state_dict() of a Coefficient returned. Nothing was loaded"
            )
        if state["kind"] != self._kind:
            raise ValueError(
                f"state is of Coefficient({state['kind']}), but this is Coefficient({self._kind}), whose multiplier "
                "means something else; build it with the same side and log. Nothing was loaded"
            )
        before = self._dual.state_dict()
        self._dual.load_state_dict(state["controller"])
        try:
            self._lagrangian.load_state_dict(state["multiplier"])
        except Exception:
            self._dual.load_state_dict(before)
            raise

    @property
    def _kind(self) -> str:
        """What the multiplier means."""
        return f"{self._side}=..., log={self._log}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_monitor": self._monitor.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or an unpickled one, has its own record, which starts with the record of the first one."""
        self.__dict__.update(state)
        self._monitor = _listening(self._lagrangian)
        self._monitor.load_state_dict(state["_monitor"])

    def __repr__(self) -> str:
        return f"Coefficient(target={self.target:g}, value={self.value.item():g})"


class _Limited(Constraint):
    """One constraint whose multiplier, a coefficient or its logarithm, stays within given limits."""

    kind = "a coefficient"

    def __init__(self, bounds: Bounds, init: float) -> None:
        self.bounds = bounds
        super().__init__(1, init=init)


def _listening(lagrangian: Lagrangian) -> Monitor:
    # Imported here: it needs the Lagrangian, as this does.
    from nupi.monitor import Monitor

    return Monitor(lagrangian, keep=_KEPT, warn=False)


def _checked_target(sides: dict[str, float | None]) -> tuple[str, float]:
    """The one side that was given, and its target."""
    given = {side: value for side, value in sides.items() if value is not None}
    if len(given) != 1:
        came = ", ".join(f"{side}={value}" for side, value in given.items()) or "none of them"
        raise ValueError(f"give exactly one of at, at_most and at_least, but {came} came")
    ((side, target),) = given.items()
    if not isinstance(target, Real) or not abs(float(target)) < math.inf:
        raise ValueError(f"{side} must be a finite number, but {target!r} came")
    return side, float(target)


def _checked_limits(
    limits: tuple[float | None, float | None] | None, *, log: bool
) -> tuple[float | None, float | None]:
    """The smallest and the largest |coefficient|; None for a side without a limit."""
    try:
        low, high = (None, None) if limits is None else limits
        sizes = [float(each) for each in (low, high) if each is not None]
    except (TypeError, ValueError):
        raise ValueError(
            f"limits must be two numbers, or None for an open side, but {limits!r} came"
        ) from None
    least = 0.0 if not log else math.ulp(0.0)
    if any(not least <= size < math.inf for size in sizes) or (len(sizes) == 2 and sizes[0] >= sizes[1]):
        above = "above 0" if log else "not negative"
        raise ValueError(f"limits must be finite, {above} and in rising order, but {limits!r} came")
    return (None if low is None else float(low)), (None if high is None else float(high))
