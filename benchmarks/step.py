"""A whole constrained training step: 70 inequality constraints on a linear model of 4 weights.

The hand-written loop is what an engineer would write without a library: nuPI at nu = 0 in three lines, with
init="zero" in velocity form. nupi is timed with the same controller, and with its default one, which does more.
humancompatible-train runs on Python 3.11 and later; before that, its row is left out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cooper
import torch

import nupi
from benchmarks.timing import Row, at_least, at_most, best_times, listed

if TYPE_CHECKING:
    from collections.abc import Callable

KI, KP, LR = 0.01, 1.0, 1e-3
HAS_HUMANCOMPATIBLE = sys.version_info >= (3, 11)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.ones(70)
    labels[::2] = -1
    return torch.randn(70, 4, generator=generator) + labels[:, None], labels


def model() -> tuple[torch.Tensor, torch.Tensor, torch.optim.Optimizer]:
    weight, bias = torch.zeros(4, requires_grad=True), torch.zeros(1, requires_grad=True)
    return weight, bias, torch.optim.SGD([weight, bias], lr=LR, momentum=0.9)


def by_hand() -> Callable[[], None]:
    x, y = data()
    weight, bias, primal = model()
    multipliers, previous = torch.zeros(70), torch.zeros(70)

    def step() -> None:
        violation = 1 - y * (x @ weight + bias)
        error = violation.detach()
        multipliers.add_(KI * error + KP * (error - previous)).clamp_(min=0)
        previous.copy_(error)
        primal.zero_grad()
        (weight.square().sum() / 2 + multipliers @ violation).backward()
        primal.step()

    return step


def with_nupi(**options: Any) -> Callable[[], None]:
    x, y = data()
    weight, bias, primal = model()
    lagrangian = nupi.Lagrangian({"margin": nupi.Inequality(70)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=KI, kp=KP, **options)

    def step() -> None:
        violations = {"margin": 1 - y * (x @ weight + bias)}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(weight.square().sum() / 2, violations).backward()
        primal.step()

    return step


class Margins(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
    """The same problem for Cooper."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.bias, (self.x, self.y) = weight, bias, data()
        self.margin = cooper.Constraint(
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=70),
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
        )

    def compute_cmp_state(self) -> cooper.CMPState:
        """The loss and the violations, as Cooper asks for them."""
        violation = 1 - self.y * (self.x @ self.weight + self.bias)
        state = cooper.ConstraintState(violation=violation)
        return cooper.CMPState(self.weight.square().sum() / 2, {self.margin: state})


def with_cooper() -> Callable[[], object]:
    weight, bias, primal = model()
    problem = Margins(weight, bias)
    dual = cooper.optim.nuPI(problem.dual_parameters(), lr=1.0, Kp=KP, Ki=KI, maximize=True)
    loop = cooper.optim.AlternatingDualPrimalOptimizer(
        problem, primal_optimizers=primal, dual_optimizers=dual
    )
    return loop.roll  # type: ignore[no-any-return]


def with_humancompatible() -> Callable[[], None]:
    from humancompatible.train.dual_optim import nuPI

    x, y = data()
    weight, bias, primal = model()
    dual = nuPI(70, nu=0.0, ki=KI, kp=KP, is_ineq=True)

    def step() -> None:
        violation = 1 - y * (x @ weight + bias)
        primal.zero_grad()
        dual.forward_update(weight.square().sum() / 2, violation).backward()
        primal.step()

    return step


def run() -> list[Row]:
    torch.set_num_threads(1)
    steps = {
        "by hand": by_hand(),
        "the same controller": with_nupi(init="zero", form="velocity"),
        "nupi": with_nupi(),
        "Cooper": with_cooper(),
    }
    if HAS_HUMANCOMPATIBLE:
        steps["humancompatible-train"] = with_humancompatible()
    times = best_times(steps, rounds=300, calls=6)
    rows = [
        at_most("nupi / by hand", times["nupi"] / times["by hand"], 1.15, listed(times)),
        at_most("the same controller / by hand", times["the same controller"] / times["by hand"], 1.15),
        at_least("Cooper / nupi", times["Cooper"] / times["nupi"], 2.0),
    ]
    if HAS_HUMANCOMPATIBLE:
        ratio = times["humancompatible-train"] / times["nupi"]
        rows.append(Row("humancompatible-train / nupi", ratio, "", None))
    return rows
