"""A whole constrained training step with 100 groups of 10 constraints: a linear model on 1,000 rows.

The model returns its violations as a mapping from group names to tensors, like a network with constraints in every
layer. The hand-written loop joins them to one vector, and moves it as in `step.py`, without a loop over groups.
"""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import cooper
import torch

import nupi
from benchmarks.step import HAS_HUMANCOMPATIBLE, KI, KP, LR
from benchmarks.timing import Row, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS, SIZE, WIDTH = 100, 10, 20
NAMES = [f"group{i}" for i in range(GROUPS)]


class Linear:
    """The model, its optimizer, its loss and its violations."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.y = torch.ones(GROUPS * SIZE)
        self.y[::2] = -1
        self.x = torch.randn(GROUPS * SIZE, WIDTH, generator=generator) + self.y[:, None]
        self.weight, self.bias = torch.zeros(WIDTH, requires_grad=True), torch.zeros(1, requires_grad=True)
        self.primal = torch.optim.SGD([self.weight, self.bias], lr=LR, momentum=0.9)

    def evaluate(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, and the violations by group."""
        violation = 1 - self.y * (self.x @ self.weight + self.bias)
        return self.weight.square().sum() / 2, dict(zip(NAMES, violation.split(SIZE), strict=True))


def by_hand() -> Callable[[], None]:
    model = Linear()
    multipliers, previous = torch.zeros(GROUPS * SIZE), torch.zeros(GROUPS * SIZE)

    def step() -> None:
        loss, violations = model.evaluate()
        violation = torch.cat(list(violations.values()))
        error = violation.detach()
        multipliers.add_(KI * error + KP * (error - previous)).clamp_(min=0)
        previous.copy_(error)
        model.primal.zero_grad()
        (loss + multipliers @ violation).backward()
        model.primal.step()

    return step


def with_nupi() -> Callable[[], None]:
    model = Linear()
    lagrangian = nupi.Lagrangian({name: nupi.Inequality(SIZE) for name in NAMES})
    dual = nupi.NuPI(lagrangian.parameters(), ki=KI, kp=KP)

    def step() -> None:
        loss, violations = model.evaluate()
        lagrangian.ascend(dual, violations)
        model.primal.zero_grad()
        lagrangian(loss, violations).backward()
        model.primal.step()

    return step


class Grouped(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
    """The same problem for Cooper."""

    def __init__(self, model: Linear) -> None:
        super().__init__()
        self.model = model
        for name in NAMES:
            constraint = cooper.Constraint(
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=SIZE),
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
            )
            setattr(self, name, constraint)

    def compute_cmp_state(self) -> cooper.CMPState:
        """The loss and the violations, as Cooper asks for them."""
        loss, violations = self.model.evaluate()
        states = {getattr(self, name): cooper.ConstraintState(violation=violations[name]) for name in NAMES}
        return cooper.CMPState(loss, states)


def with_cooper() -> Callable[[], object]:
    model = Linear()
    problem = Grouped(model)
    dual = cooper.optim.nuPI(problem.dual_parameters(), lr=1.0, Kp=KP, Ki=KI, maximize=True)
    loop = cooper.optim.AlternatingDualPrimalOptimizer(
        problem, primal_optimizers=model.primal, dual_optimizers=dual
    )
    return loop.roll  # type: ignore[no-any-return]


def with_humancompatible() -> Callable[[], None]:
    from humancompatible.train.dual_optim import nuPI

    model = Linear()
    dual = nuPI(SIZE, nu=0.0, ki=KI, kp=KP, is_ineq=True)  # the first group; it is named group0
    for name in NAMES[1:]:
        dual.add_constraint_group(SIZE, is_ineq=True, name=name)

    def step() -> None:
        loss, violations = model.evaluate()
        model.primal.zero_grad()
        dual.forward_update(loss, violations).backward()
        model.primal.step()

    return step


def run() -> list[Row]:
    torch.set_num_threads(1)
    steps = {"by hand": by_hand(), "nupi": with_nupi(), "Cooper": with_cooper()}
    if HAS_HUMANCOMPATIBLE:
        steps["humancompatible-train"] = with_humancompatible()
    # A turn is so long that it includes other work of the machine; the CPU time of one thread does not.
    times = best_times(steps, rounds=40, calls=5, clock=process_time)
    ours = times["nupi"]
    rows = [Row("100 groups: nupi / by hand", ours / times["by hand"], "", None, listed(times))]
    rows += [
        Row(f"100 groups: {rival} / nupi", times[rival] / ours, "", None)
        for rival in steps
        if rival not in ("by hand", "nupi")
    ]
    return rows
