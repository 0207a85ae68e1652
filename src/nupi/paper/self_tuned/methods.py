"""The methods that are compared: SelfTuned, and gains set by hand, by the paper's authors or by other libraries.

The other libraries' rules are written here from their published formulas and defaults, on nupi's own optimizers:

- humancompatible-train 0.4.2: `nuPI(nu=0.01, ki=0.01, kp=1)`, whose first step is (ki + kp) e, and `ALM(lr=0.01)` with
  `penalty=1`, its augmentation of inequalities by Hestenes, Powell and Rockafellar. Both keep multipliers within 100.
- omnisafe: the PID rule with kp = 0.1, ki = kd = 0.01, the error smoothed with 0.95. Its division of the loss by
  1 + lambda is for policy gradients and is left out.

What is called tuned has the best gains of a search on the SVM as the paper has it (`svm-dynamics`). On the plane these
are the gains of the paper that damp almost critically there (`plane-kp`), from the start that it is run with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nupi

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from nupi.constraints import Constraint
    from nupi.paper.self_tuned.task import Task

GRID = (0.001, 0.01, 0.1, 1.0)
"""Step sizes of gradient ascent, of which the best is shown."""
MOST = 100.0  # multipliers of humancompatible-train


@dataclass(frozen=True)
class Method:
    """How multipliers move: the dual optimizer, and what the Lagrangian has to have for it."""

    dual: Callable[[Any, Task], torch.optim.Optimizer]
    penalty: float | None = None
    restart: bool = False
    upper: float | None = None

    def constraint(self, given: Constraint) -> Constraint:
        """The constraint as this method has it: with restarts, or with an upper bound."""
        if not isinstance(given, nupi.Inequality) or not (self.restart or self.upper):
            return given
        return nupi.Inequality(tuple(given.shape), init=given.init, restart=self.restart, upper=self.upper)


def horizon(task: Task, share: float = 0.25) -> float:
    """The dual steps of a share of training."""
    return task.steps / task.dual_every * share


def ascent(ki: float) -> Method:
    """Gradient ascent."""
    return Method(lambda params, _: nupi.NuPI(params, ki=ki))


METHODS: dict[str, Method] = {
    "SelfTuned": Method(lambda params, task: nupi.SelfTuned(params, horizon(task), primal=task.primal)),
    "SelfTuned, T/2": Method(
        lambda params, task: nupi.SelfTuned(params, horizon(task, 0.125), primal=task.primal)
    ),
    "SelfTuned, 2T": Method(
        lambda params, task: nupi.SelfTuned(params, horizon(task, 0.5), primal=task.primal)
    ),
    "SelfTuned, identified": Method(lambda params, task: nupi.SelfTuned(params, horizon(task))),
    **{f"gradient ascent {ki:g}": ascent(ki) for ki in GRID},
    "restarts 0.1": Method(lambda params, _: nupi.NuPI(params, ki=0.1), restart=True),
    "gradient ascent, tuned": ascent(0.0055),
    "nuPI, tuned": Method(lambda params, _: nupi.NuPI(params, ki=0.28, kp=10.0)),
    "nuPI, tuned on the plane": Method(
        lambda params, _: nupi.NuPI(params, ki=0.01, kp=3.0, init="zero", form="velocity")
    ),
    "nuPI 0.03, 5, 0.9": Method(lambda params, _: nupi.NuPI(params, ki=0.03, kp=5.0, nu=0.9)),
    "humancompatible nuPI": Method(
        lambda params, _: nupi.NuPI(params, ki=0.01, kp=1.0, nu=0.01, init="error", form="velocity"),
        upper=MOST,
    ),
    "humancompatible ALM": Method(lambda params, _: nupi.NuPI(params, ki=0.01), penalty=1.0, upper=MOST),
    "omnisafe PID": Method(lambda params, _: nupi.PID(params, ki=0.01, kp=0.1, kd=0.01, nu=0.95), upper=MOST),
}
