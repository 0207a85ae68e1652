"""The dual players that are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

import nupi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nupi.paper.sparsity.scales import Experiment
    from nupi.rule import Form, Init

Kind: TypeAlias = Literal["nupi", "polyak", "nesterov", "adam", "penalty", "self-tuned"]
HORIZON = 0.25  # of a run: within this share SelfTuned is to meet the constraints


@dataclass(frozen=True)
class Dual:
    """A dual player, with the gains of the paper's tables; what changes with the scale comes from the setting.

    Args:
        kind: the family; "nupi" with kp = 0 is gradient ascent, "penalty" keeps its multiplier, "self-tuned" finds its
            gains.
        kp: nuPI's proportional gain.
        beta: the momentum of Polyak and Nesterov.
        restart: whether a satisfied constraint's multiplier goes back to 0.
        step: Adam's step size at the paper's number of steps.
        multiplier: the fixed one of "penalty".
        init: nuPI's initial condition; the paper's runs had "bumpless".
        form: nuPI's form; theirs is "velocity".
        ramp: the share of the run over which both gains grow from 0 to their values.
    """

    kind: Kind = "nupi"
    kp: float = 0.0
    beta: float = 0.0
    restart: bool = False
    step: float = 8e-4
    multiplier: float = 0.0
    init: Init = "bumpless"
    form: Form = "velocity"
    ramp: float = 0.0

    @property
    def label(self) -> str:
        """What tables call it."""
        if self.kind in ("polyak", "nesterov"):
            return f"{self.kind.capitalize()} beta = {self.beta:g}"
        if self.kind == "adam":
            return f"Adam {self.step:g}"
        if self.kind == "penalty":
            return f"fixed multiplier {self.multiplier:.3g}"
        if self.kind == "self-tuned":
            return "SelfTuned"
        if self.kp == 0 and not self.ramp:
            return "GA + dual restarts" if self.restart else "GA"
        changed = [self.init] * (self.init != "bumpless") + [self.form] * (self.form != "velocity")
        return ", ".join([f"nuPI kp = {self.kp:g}", *changed, *["ramp"] * (self.ramp > 0)])

    @property
    def colour(self) -> str:
        """Its key in `nupi.paper.style`."""
        if self.kind == "polyak" and self.beta < 0:
            return "polyak-negative"
        if self.kind == "penalty":
            return "unconstrained"
        if self.kind == "nupi" and self.kp == 0:
            return "restart" if self.restart else "ga"
        return self.kind

    def settings(self) -> dict[str, Any]:
        """As the keyword arguments of a job."""
        return asdict(self)

    def optimizer(
        self,
        lagrangian: nupi.Lagrangian,
        setting: Experiment,
        primal: Iterable[torch.optim.Optimizer] | None = None,
    ) -> torch.optim.Optimizer | None:
        """Its optimizer for these multipliers; None where they are fixed. SelfTuned looks at those of the model."""
        multipliers, ki = lagrangian.parameters(), setting.ki
        if self.kind == "penalty":
            return None
        if self.kind == "self-tuned":
            return nupi.SelfTuned(multipliers, max(1.0, HORIZON * setting.steps), primal=primal)
        if self.kind == "adam":
            lr, betas = self.step * setting.speed, (setting.beta1, setting.beta2)
            return torch.optim.Adam(multipliers, lr=lr, betas=betas, maximize=True)
        if self.kind in ("polyak", "nesterov"):
            beta = setting.remembered(self.beta)
            lr = (
                ki * (1 - beta) / (1 - self.beta)
            )  # the sum of the steps that one error causes stays ki / (1 - beta)
            return nupi.UnifiedMomentum(multipliers, lr, beta, float(self.kind == "nesterov"))
        return nupi.NuPI(multipliers, ki, self.kp, init=self.init, form=self.form)

    def gain(self, steps: int) -> Callable[[int], float]:
        """The factor of both gains at each step."""
        reached = self.ramp * steps
        return lambda step: min(1.0, (step + 1) / reached) if reached else 1.0


GA = Dual()
RESTARTS = Dual(restart=True)
SELF_TUNED = Dual("self-tuned")
MOMENTUM = tuple(Dual("polyak", beta=beta) for beta in (-0.5, -0.3, 0.3))
OVERSHOOTING = (*MOMENTUM, GA)
"""The methods that the paper finds to overshoot; in its tables' order."""


def of_the_tables(kp: float) -> tuple[Dual, ...]:
    """The six methods of the paper's tables, with its kp for the row of nuPI."""
    return (*OVERSHOOTING, RESTARTS, Dual(kp=kp))
