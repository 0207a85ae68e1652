"""A schedule for the penalties of the augmented Lagrangian that looks at how feasible the constraints are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nupi import distributed
from nupi.ascent import NonFiniteViolationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.lagrangian import Lagrangian, Violations

_ABSENT, _REFUSED = -1.0, math.inf  # in place of an infeasibility, in what ranks tell each other


class PenaltySchedule:
    """Raises the penalty of a constraint whose infeasibility has not fallen enough since the last look.

    With v the largest infeasibility of a group of constraints (|h|, or max(0, g)) and c its penalty,

        c <- min(factor c, upper)    if v > tolerance and v > decrease * (v at the last look)

    as in the method of multipliers (Bertsekas, 1982, section 2.2; Birgin and Martínez, 2014, algorithm 4.1, who
    choose the same numbers). Where the multipliers alone make progress, the penalty and with it the conditioning
    of the problem stay as they are. Call `step` once an outer iteration: after an epoch, or some hundred steps.

    Args:
        lagrangian: one that was given a `penalty`. Constraints without one are left alone.
        factor: what a penalty is multiplied by, > 1.
        decrease: the share of its infeasibility that a constraint may keep from one look to the next, in (0, 1].
        tolerance: an infeasibility that is good enough: a penalty is not raised for less.
        upper: the most that a penalty may become.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()}, penalty=1.0)
        >>> schedule = PenaltySchedule(lagrangian)
        >>> for violation in (0.8, 0.2, 0.15):  # a quarter, then three quarters of what it was
        ...     schedule.step({"norm": torch.tensor(violation)})
        >>> lagrangian.penalties
        {'norm': 10.0}
    """

    def __init__(
        self,
        lagrangian: Lagrangian,
        *,
        factor: float = 10.0,
        decrease: float = 0.5,
        tolerance: float = 0.0,
        upper: float = 1e6,
    ) -> None:
        if not lagrangian.penalties:
            raise ValueError(
                "the Lagrangian has no penalty to begin with; make it as in Lagrangian(constraints, penalty=1.0)"
            )
        for name, value, fits, allowed in (
            ("factor", factor, 1 < factor < math.inf, "above 1"),
            ("decrease", decrease, 0 < decrease <= 1, "above 0 and at most 1"),
            ("tolerance", tolerance, 0 <= tolerance < math.inf, "0 or above"),
            ("upper", upper, 0 < upper < math.inf, "above 0 and finite"),
        ):
            if not fits:
                raise ValueError(f"{name} must be {allowed}, but {value!r} came")
        self.lagrangian = lagrangian
        self.factor, self.decrease, self.tolerance, self.upper = factor, decrease, tolerance, upper
        self._last: dict[str, float] = {}

    @torch.no_grad()
    def step(self, violations: Violations) -> None:
        """Look at violations as `ascend` takes them, and raise the penalties of those that lag behind.

        What is absent is left alone. In a run of many processes under `reduce` every rank calls it, and the
        largest infeasibility of any rank counts, so that all keep the same penalties.

        Raises:
            NonFiniteViolationError: a violation is nan or infinite. No penalty has changed.
        """
        found = self._infeasibilities(violations)
        raised = self.lagrangian.penalties
        for name, penalty in raised.items():
            if name not in found:
                continue
            allowed = max(self.tolerance, self.decrease * self._last.get(name, math.inf))
            if found[name] > allowed and penalty < self.upper:
                raised[name] = min(self.factor * penalty, self.upper)
        self.lagrangian.penalties = raised
        self._last.update(found)

    def state_dict(self) -> dict[str, Any]:
        """The penalties, and the infeasibilities at the last look."""
        return {"penalties": self.lagrangian.penalties, "last": dict(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: the Lagrangian gets its penalties too."""
        missing = {"penalties", "last"} - set(state)
        if missing:
            raise ValueError(
                f"state lacks {', '.join(sorted(missing))}; it is not the state_dict of a PenaltySchedule"
            )
        self.lagrangian.penalties = state["penalties"]
        self._last = {str(name): float(value) for name, value in state["last"].items()}

    def _infeasibilities(self, violations: Violations) -> dict[str, float]:
        """The largest infeasibility of each group that came, on any rank."""
        here: dict[str, float] = {}
        refusal: Exception | None = None
        try:
            here = _largest(self.lagrangian, violations)
        except Exception as error:  # noqa: BLE001 - other ranks must hear of it before it is raised
            refusal = error
        lagrangian = self.lagrangian
        if lagrangian.reduce is not None and distributed.world_size(lagrangian.group) > 1:
            names = list(lagrangian.constraints)
            told = [_REFUSED if refusal else here.get(name, _ABSENT) for name in names]
            device = next(lagrangian.parameters()).device
            joined = torch.tensor(told, dtype=torch.float64, device=device)
            torch.distributed.all_reduce(joined, torch.distributed.ReduceOp.MAX, group=lagrangian.group)
            here = {
                name: value for name, value in zip(names, joined.tolist(), strict=True) if value != _ABSENT
            }
            if refusal is None and _REFUSED in here.values():
                raise distributed.PeerRefusedError(
                    "another rank refused its violations, so no penalty was raised; its own error says why"
                )
        if refusal is not None:
            raise refusal
        return here


def _largest(lagrangian: Lagrangian, violations: Violations) -> dict[str, float]:
    """The largest infeasibility of each group that this rank has, whatever kind of violation it came as."""
    found: dict[str, float] = {}
    for target, violation in lagrangian._paired(violations):
        beyond = violation.moving().infeasibility(target)
        if beyond is not None and beyond.numel():
            found[target.name] = beyond.max().item()
    bad = [name for name, value in found.items() if not math.isfinite(value)]
    if bad:
        raise NonFiniteViolationError(
            bad,
            f"violations of {', '.join(map(repr, bad))} are not finite (nan or inf); no penalty was raised",
        )
    return found
