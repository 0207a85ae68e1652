"""What a batch shows of the constraints of one group, and which of them are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.plant.response import MOST_ROWS, Sample

if TYPE_CHECKING:
    from nupi.violations import Target, Violation

MOST_SAMPLED = 32  # rows of a group that is sampled: one response serves all of it


class Shown(NamedTuple):
    """The constraints of one group that a batch shows: their errors with the graph, and which they are."""

    target: Target
    errors: torch.Tensor
    elements: torch.Tensor | None  # positions in the flat group; None means all of them
    share: float | None = None  # of the group's rows, if each batch shows other ones

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers of these constraints, from a tensor of the whole group."""
        flat = tensor.detach().flatten()
        return flat if self.elements is None else flat[self.elements]


def see(target: Target, violation: Violation, factor: float = 1.0) -> Shown:
    """The errors that a batch shows, flat, with their graph: the derivative of the Lagrangian in its multipliers."""
    theta = target.multiplier.detach().clone().requires_grad_()
    with torch.enable_grad():
        term = violation.term(target._replace(multiplier=theta, penalty=None))
        (errors,) = torch.autograd.grad(term, theta, create_graph=True, materialize_grads=True)
    errors = factor * errors.flatten()
    sampled = violation.moving().by_rows
    if len(errors) <= MOST_ROWS and not sampled:
        return Shown(target, errors, None)
    elements = errors.detach().nonzero().squeeze(1)
    share = len(elements) / len(errors)
    if share == 1.0 or (share > 0.5 and not sampled):
        return Shown(target, errors, None)
    return Shown(target, errors[elements], elements, share if sampled else None)


def some_of(one: Shown, most: int, seed: int) -> Shown:
    """At most so many rows of a group that is sampled, at random; live ones first."""
    if one.share is None or one.elements is None or len(one.errors) <= most:
        return one
    chance = torch.randperm(len(one.errors), generator=torch.Generator().manual_seed(seed))
    chance = chance.to(one.errors.device)
    live = (one.part(one.target.multiplier) != 0) | (
        one.target.constraint.infeasibility(one.errors.detach()) > 0
    )
    chosen = chance[live[chance].to(torch.int8).argsort(descending=True, stable=True)][:most]
    return one._replace(errors=one.errors[chosen], elements=one.elements[chosen])


def sample(one: Shown, state: dict[str, torch.Tensor]) -> Sample | None:
    """What is known of all rows of a group that batches show some of: how many are live, as they were last seen."""
    if one.share is None:
        return None
    live = (one.target.multiplier.detach() != 0) | (one.target.constraint.infeasibility(state["last"]) > 0)
    return Sample(one.share, max(1, int(live.sum())))
