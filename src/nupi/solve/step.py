"""One step of a run, for a single setting or for a batch of them: the multipliers first, then x.

First e = c(x) moves theta by its rule, and theta is projected; then x moves along the gradient of L(x, theta).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nupi.rule import Gain
    from nupi.solve.problem import Problem
    from nupi.solve.rules import Rule, TorchRule

_TRACING = Lock()  # torch traces in one thread of a process at a time

Leaves: TypeAlias = "dict[str, torch.Tensor]"
Evaluate: TypeAlias = "Callable[[Problem, Leaves], tuple[torch.Tensor, torch.Tensor]]"


@contextmanager
def tracing() -> Iterator[None]:
    """Context for tracing a step: one thread at a time, with one table of shapes for the whole trace.

    Else torch makes a table for every operation, which takes most of the time.
    """
    from torch._guards import TracingContext
    from torch._guards import tracing as context
    from torch._subclasses.fake_tensor import FakeTensorMode

    with _TRACING, context(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        yield


@dataclass(frozen=True)
class Block:
    """Consecutive settings of a batch that share a dual rule: columns start .. stop - 1."""

    rule: Rule
    start: int
    stop: int
    name: str
    restart: bool

    @property
    def columns(self) -> int:
        """The number of its settings."""
        return self.stop - self.start


def take_step(
    problem: Problem,
    blocks: Sequence[Block],
    primal: TorchRule,
    tensors: Leaves,
    evaluate: Evaluate,
    one: torch.Tensor,
    *,
    first: bool,
    seen: bool,
) -> list[torch.Tensor]:
    """Move all tensors by one step, in place. With `seen`, return f and c before the step.

    Args:
        problem: the problem.
        blocks: all settings; for a single setting without a batch, its one block.
        primal: the rule that moves x.
        tensors: points, multipliers, state and gains by name.
        evaluate: computes f and c from `tensors`, which hold one point or a batch.
        one: a tensor of ones, shaped like f; an argument, so that it is a constant in a trace.
        first: whether this is the first step, which sets the initial condition.
        seen: whether to return f and c.
    """
    x, theta = under("x", tensors), tensors["theta"]
    (value, e), pull = differentiate(problem, x, evaluate)
    e = e.detach()
    # Copies, because a constraint that returns x itself would change with x.
    observed = [value.detach().clone(), e.clone()] if seen else []
    for block in blocks:
        gains: dict[str, Gain] = {**under(f"{block.name}/gain", tensors)}
        for number, segment in enumerate(problem.segments(restart=block.restart)):
            part, error = theta, e
            if segment.stop - segment.start < problem.size:
                rows = slice(segment.start, segment.stop)
                part, error = part[rows], error[rows]
            if len(blocks) > 1:
                columns = slice(block.start, block.stop)
                part, error = part[:, columns], error[:, columns]
            state = under(f"{block.name}/state {number}", tensors)
            block.rule.move_(part, error, gains, state, segment.bounds, first=first)
    (gradient,) = pull((one, problem.weights(theta, e, tensors.get("penalty"))))
    # Numbers, not tensors: all settings share one primal rule.
    numbers: dict[str, Gain] = {name: values[0] for name, values in primal.gains().items()}
    for name, leaf in x.items():
        primal.step_(leaf, gradient[name], numbers, under(f"primal/{name}", tensors), sign=-1.0)
    return observed


def evaluate_one(problem: Problem, leaves: Leaves) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective and the violations of one point."""
    return problem.value(leaves), problem.violations(leaves)


def evaluate_batch(problem: Problem, leaves: Leaves) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective and the violations of a batch of points: (settings) and (constraints, settings)."""
    value = torch.vmap(problem.value, in_dims=-1)(leaves)
    e = torch.vmap(problem.violations, in_dims=-1, out_dims=-1)(leaves)
    return value, e


def differentiate(
    problem: Problem, leaves: Leaves, evaluate: Evaluate = evaluate_batch
) -> tuple[tuple[torch.Tensor, torch.Tensor], Callable[..., tuple[Leaves]]]:
    """Compute f and c, and the function that maps cotangents of both to the gradient in x."""
    found = torch.func.vjp(lambda point: evaluate(problem, point), leaves)
    return found[0], found[1]


def under(prefix: str, tensors: Leaves) -> Leaves:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    lead = prefix + "/"
    return {name[len(lead) :]: tensor for name, tensor in tensors.items() if name.startswith(lead)}
