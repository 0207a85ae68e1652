"""A schedule for the penalties of the augmented Lagrangian, driven by the infeasibility of the constraints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nupi import distributed
from nupi.ascent import NonFiniteViolationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.lagrangian import Lagrangian, Violations

_ABSENT, _REFUSED = -1.0, math.inf  # sent to other ranks in place of an infeasibility


class PenaltySchedule:
    """Raise the penalty of a constraint if its infeasibility has not fallen enough since the last call of `step`.

    With v the largest infeasibility of a group of constraints (|h|, or max(0, g)) and c its penalty,

        c <- min(factor c, upper)    if v > tolerance and v > decrease * (v at the last call)

    as in the method of multipliers (Bertsekas, 1982, section 2.2; Birgin and Martínez, 2014, algorithm 4.1, who
    choose the same numbers). If the multipliers alone make enough progress, the penalty does not change, and so the
    conditioning of the problem does not change either. Call `step` once per outer iteration: after an epoch, or after
    a few hundred steps.

    Args:
        lagrangian: a Lagrangian with a `penalty`. Constraints without a penalty do not change.
        factor: the factor by which a penalty is raised, > 1.
        decrease: the share of its infeasibility that a constraint may keep from one call to the next, in (0, 1].
        tolerance: a smaller infeasibility never raises a penalty.
        upper: the largest penalty.

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
        """Raise the penalties of constraints whose infeasibility falls too slowly. Takes violations as `ascend` does.

        A constraint that is absent does not change. With many processes and `reduce`, every rank must call it. The
        largest infeasibility of any rank counts, so all ranks have the same penalties.

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
        """The penalties, and the infeasibilities at the last call."""
        return {"penalties": self.lagrangian.penalties, "last": dict(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. The penalties are also set in the Lagrangian."""
        missing = {"penalties", "last"} - set(state)
        if missing:
            raise ValueError(
                f"state lacks {', '.join(sorted(missing))}; it is not the state_dict of a PenaltySchedule"
            )
        self.lagrangian.penalties = state["penalties"]
        self._last = {str(name): float(value) for name, value in state["last"].items()}

    def _infeasibilities(self, violations: Violations) -> dict[str, float]:
        """The largest infeasibility over all ranks of each group that is present."""
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
    """The largest infeasibility of each group that this rank has, for any kind of violation."""
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
