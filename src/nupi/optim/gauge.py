"""With what `SelfTuned` measures, and what its user is told if that cannot work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from nupi.optim import measuring, tuning_warnings
from nupi.optim.observation import count_unknown, observe, shows_unknown
from nupi.plant.optimizers import check_optimizers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.utils.hooks import RemovableHandle

    from nupi.lagrangian import Lagrangian
    from nupi.optim.base import DualOptimizer
    from nupi.optim.evaluated import Evaluate
    from nupi.violations import Target, Violation

PATIENCE = 32  # dual steps by which a loss has been shown, and primal has taken a step


class Gauge:
    """The optimizers of the model, the data to measure on, and what has been seen and said of them so far.

    Without optimizers it measures nothing: the response is identified, or is that of a checkpoint or of an original.
    """

    def __init__(self) -> None:
        self.primal: tuple[torch.optim.Optimizer, ...] = ()
        self._evaluate: Evaluate | None = None
        self._hook: RemovableHandle | None = None
        self._busy = False  # `evaluate` may call the Lagrangian, which shows its loss again
        self.restart()

    def restart(self) -> None:
        """Wait anew for a loss and for a step of primal, as after a checkpoint was loaded."""
        self.checked = self._shown = self._stepped = False
        self._warned_of_speed = self._warned_of_unknown = False
        self._first_check = math.inf

    def watch(
        self,
        dual: DualOptimizer,
        primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        evaluate: Evaluate | None,
    ) -> None:
        """Measure through these optimizers from now on, and count the first one's steps in the dual's param groups."""
        if evaluate is not None and not callable(evaluate):
            raise TypeError(
                f"evaluate must be a function that returns (loss, violations), but a {type(evaluate).__name__} came"
            )
        self.primal, self._evaluate = check_optimizers(primal), evaluate

        def count(*_: Any) -> None:
            self._stepped = True
            for group in dual.param_groups:
                group["since"] += 1

        if self._hook is not None:
            self._hook.remove()
        self._hook = self.primal[0].register_step_post_hook(count)
        self.restart()

    def measure(
        self,
        dual: DualOptimizer,
        lagrangian: Lagrangian,
        loss: torch.Tensor,
        paired: Sequence[tuple[Target, Violation]],
    ) -> bool:
        """Measure the response if it is time to, and whether it was measured."""
        if not self.primal or not torch.is_grad_enabled():
            return False
        self._shown = True
        group = dual.param_groups[0]
        rate, moved = measuring.sum_of_rates(self.primal), len(dual.state)
        due = measuring.is_due(group, rate) or (
            measuring.is_incomplete(group, moved) and shows_unknown(dual, lagrangian, paired)
        )
        if not due or self._busy:
            return False
        self._busy = True
        try:
            closest = observe(dual, self.primal, lagrangian, loss, paired, self._evaluate)
        finally:
            self._busy = False
        if closest is None:
            return False
        measuring.write_down(dual.param_groups, closest, rate, moved, count_unknown(dual))
        return True

    def check(self, taken: int) -> None:
        """Say once why nothing can be measured, if the user has forgotten something."""
        self._first_check = min(self._first_check, taken)
        if not self.primal:
            tuning_warnings.warn_of_no_primal()
        elif not (self._shown and self._stepped):
            waited = taken - int(self._first_check)
            if waited < PATIENCE:
                return
            if not self._shown:
                tuning_warnings.warn_of_no_loss(waited)
            else:
                tuning_warnings.warn_of_rest(waited, type(self.primal[0]).__name__)
        self.checked = True

    def warn(self, dual: DualOptimizer, names: Mapping[int, str]) -> None:
        """Say once what keeps the constraints from being met, if the measurements show it.

        After `steps` it is too late to say that they are short: a learning rate that falls at the end of training is
        no reason.
        """
        group = dual.param_groups[0]
        held = {p: dual.state[p] for g in dual.param_groups for p in g["params"] if dual.state.get(p)}
        if not self._warned_of_speed and group["taken"] <= group["steps"]:
            top = float(torch.stack([state["speed"].amax() for state in held.values()]).max())
            self._warned_of_speed = tuning_warnings.warn_of_speed(top * group["per_step"], group["steps"])
        if not self._warned_of_unknown and not group["tries"] and group["unknown"]:
            unknown = [
                names.get(id(p), "?") for p, state in held.items() if bool((state["response"] == 0).any())
            ]
            shown = "the loss and the violations" if self._evaluate is None else "what evaluate returns"
            tuning_warnings.warn_of_unknown(unknown, shown)
            self._warned_of_unknown = True
