"""What a task is: a model, its optimizer, its loss and its constraints, and how the result is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nupi.constraints import Constraint

    Violations = Mapping[str, torch.Tensor]


@dataclass
class Task:
    """One training problem, ready to run once.

    Args:
        name: what the tables call it.
        parameters: the tensors that are trained.
        primal: their optimizer.
        constraints: by name, as `Lagrangian` takes them.
        evaluate: the loss and the violations of the next batch, with their graph.
        steps: how many steps training has.
        judge: after training, the numbers the task is judged by; "violation" is the worst one, measured
            on all data, in the constraint's own unit.
        dual_every: primal steps per dual step.
        measure: the violations for the multipliers, if they are not those of the batch.
    """

    name: str
    parameters: Sequence[torch.Tensor]
    primal: torch.optim.Optimizer
    constraints: Mapping[str, Constraint]
    evaluate: Callable[[], tuple[torch.Tensor, Violations]]
    steps: int
    judge: Callable[[], dict[str, float]]
    dual_every: int = 1
    measure: Callable[[], Violations] | None = None


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, weight_decay=0.01),
    "rmsprop": torch.optim.RMSprop,
}


def worst(violations: torch.Tensor, *, equality: bool) -> torch.Tensor:
    """The largest violation: in size for equalities, above 0 for inequalities."""
    return violations.abs().max() if equality else violations.clamp(min=0.0).max()
