"""With what `SelfTuned` measures, and what its user is told if that cannot work."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

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

UNSHOWN = 32  # steps of primal after a dual step, by which a loss has been shown
AT_REST = 256  # losses that were shown, by which primal has taken a step


class Gauge:
    """The optimizers of the model, the data to measure on, and what has been seen and said of them so far.

    Without optimizers it measures nothing: the response is identified, or is that of a checkpoint or of an original.
    """

    def __init__(self) -> None:
        self.primal: tuple[torch.optim.Optimizer, ...] = ()
        self._evaluate: Evaluate | None = None
        self._hooks: list[RemovableHandle] = []
        self._busy = False  # `evaluate` may call the Lagrangian, which shows its loss again
        self.restart()

    def restart(self) -> None:
        """Wait anew for a loss and for a step of primal, as after a checkpoint was loaded."""
        self._steps = self._shown = 0  # of primal; losses
        self._fastest = 0.0
        self._warned_of_primal = self._warned_of_speed = self._warned_of_unknown = False

    def watch(
        self,
        dual: DualOptimizer,
        primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        evaluate: Evaluate | None,
    ) -> None:
        """Measure through these optimizers from now on, and count their steps in the dual's param groups.

        If they take different numbers of steps between two dual steps, the largest counts.
        """
        if evaluate is not None and not callable(evaluate):
            raise TypeError(
                f"evaluate must be a function that returns (loss, violations), but a {type(evaluate).__name__} came"
            )
        self.primal, self._evaluate = check_optimizers(primal), evaluate
        while self._hooks:
            self._hooks.pop().remove()
        counts = [0] * len(self.primal)
        counted = weakref.ref(dual)  # an optimizer of the model does not keep the dual alive

        def count(number: int) -> None:
            owner = counted()
            if owner is None:
                return
            since = owner.param_groups[0]["since"]
            if since != max(counts):  # there was a dual step, or a checkpoint was loaded
                counts[:] = [since] * len(counts)
            counts[number] += 1
            for group in owner.param_groups:
                group["since"] = max(counts)
            if owner.param_groups[0]["taken"]:
                self._steps += 1
                self._check()

        for number, optimizer in enumerate(self.primal):
            hook = optimizer.register_step_post_hook(lambda *_, number=number: count(number))
            self._hooks.append(hook)
        self.restart()

    def measure(
        self,
        dual: DualOptimizer,
        lagrangian: Lagrangian,
        loss: torch.Tensor,
        paired: Sequence[tuple[Target, Violation]],
    ) -> bool:
        """Measure the response if it is time to. Returns whether it was measured."""
        if not self.primal or not torch.is_grad_enabled():
            return False
        self._shown += 1
        self._check()
        group = dual.param_groups[0]
        rate, moved = measuring.sum_of_rates(self.primal), len(dual.state)
        due = measuring.is_due(group, rate) or (
            measuring.is_incomplete(group, moved) and shows_unknown(dual, lagrangian, paired)
        )
        if not due or self._busy or measuring.rests(self.primal):
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

    def _check(self) -> None:
        """Say once why nothing can be measured, if the user has forgotten something."""
        if self._warned_of_primal or (self._steps and self._shown):
            return
        if self._steps >= UNSHOWN:
            tuning_warnings.warn_of_no_loss(self._steps)
        elif self._shown >= AT_REST:
            tuning_warnings.warn_of_rest(self._shown, [type(each).__name__ for each in self.primal])
        else:
            return
        self._warned_of_primal = True

    def check_copy(self) -> None:
        """Say once that gains which were measured stay what they are, without a primal."""
        if not self.primal and not self._warned_of_primal:
            self._warned_of_primal = True
            tuning_warnings.warn_of_no_primal()

    def warn(self, dual: DualOptimizer, names: Mapping[int, str]) -> None:
        """Say once what keeps the constraints from being met, if the measurements show it.

        The first half of `steps` is too early to say that they are short: learning rates warm up, and gates open. After
        `steps` it is too late: a learning rate that falls at the end of training is no reason.
        """
        group = dual.param_groups[0]
        held = {p: dual.state[p] for g in dual.param_groups for p in g["params"] if dual.state.get(p)}
        taken, steps = group["taken"], group["steps"]
        if not self._warned_of_speed and taken <= steps:
            top = float(torch.stack([state["speed"].amax() for state in held.values()]).max())
            self._fastest = max(self._fastest, top * group["per_step"])
            if 2 * taken >= steps:
                self._warned_of_speed = tuning_warnings.warn_of_speed(self._fastest, steps)
        if not self._warned_of_unknown and not group["tries"] and group["unknown"]:
            unknown = [
                names.get(id(p), "?") for p, state in held.items() if bool((state["response"] == 0).any())
            ]
            shown = "the loss and the violations" if self._evaluate is None else "what evaluate returns"
            tuning_warnings.warn_of_unknown(unknown, shown)
            self._warned_of_unknown = True
