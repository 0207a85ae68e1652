"""Measuring the plant: M = J P J^T, with the Jacobian J of the violations and the optimizer's P.

The response of constraint i is the i-th row of M summed over the live constraints, after the rows have been
brought to one unit (a row sum bounds the largest eigenvalue):

    b_i = M_ii sum over live j of |M_ij| / sqrt(M_ii M_jj)

For Adam and its kin P depends on the gradient that comes, and the tangent, P = rate / sqrt(v), is infinite where
gradients cancel. So the gain is a secant: P is taken at the amplitude that the multipliers will need,

    P = rate / sqrt(v + (delta g)^2 + (0.2 theta J)^2),      sum of rate g (delta g) / sqrt(v + (delta g)^2) = need

with g the constraints' gradient in the direction of the violation, and half the top speed as the most one may need.

Where there are many constraints one group has one response: the mean of its diagonal, by random signs, times the
largest eigenvalue of M in that unit, for which the direction of the violation is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.plant.shards import Shards, backward_gradients, is_sharded, local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.plant.optimizers import Scaling

MOST_NUMBERS = 4_000_000  # of a Jacobian that is held as a whole
MOST_ROWS = 256
HALVINGS = 30  # of the search for delta, over 24 decades
MARGIN = 1.2  # on an eigenvalue that was tried in one direction
TINY = 1e-30
UNLIMITED = 1e9  # the speed of an adaptive optimizer where nothing is violated


class Plant(NamedTuple):
    """What one batch says about the plant, one number a constraint (but for the speed and the metric)."""

    response: torch.Tensor
    """b: how far the violation moves a primal step, per unit of multiplier."""
    balance: torch.Tensor
    """The multiplier at which the constraint's gradient is as large as the loss's, in the metric of P."""
    speed: torch.Tensor
    """The largest share of the violation that one primal step can remove; 0 for SGD, which has no such bound."""
    slope: torch.Tensor
    """The length of the constraint's gradient."""
    metric: list[torch.Tensor]
    """P, for every parameter."""


class Sample(NamedTuple):
    """What is known of a group that each batch shows other rows of."""

    share: float
    """The share of the group's rows that a batch shows."""
    live: int
    """How many rows of the whole group push or are violated."""


def measure(
    scalings: Sequence[Scaling],
    loss: torch.Tensor,
    violations: torch.Tensor,
    theta: torch.Tensor,
    live: torch.Tensor,
    wanted: torch.Tensor,
    groups: Sequence[int],
    need: float,
    signs: torch.Generator,
    samples: Sequence[Sample | None] | None = None,
) -> Plant:
    """Measure the plant on one batch. The graph is kept, for the user's own backward pass.

    Args:
        scalings: P of every parameter.
        loss: the objective, with its graph.
        violations: of all constraints seen, in one dimension, with their graph.
        theta: their multipliers.
        live: which of them push or are violated.
        wanted: by how much each is violated: its size for an equality, what is above 0 for an inequality.
        groups: how many of the violations belong to each group, in order.
        need: how far the violations should move a step, in norm.
        signs: for the random directions.
        samples: for each group that batches show some rows of, what is known of all rows; None for a whole group.
    """
    samples = samples or [None] * len(groups)
    parameters = [one.parameter for one in scalings]
    numbers = sum(p.numel() for p in parameters)
    shards = Shards(parameters)
    toward = torch.where(live, shards.joined(violations.detach()).abs(), 0.0)
    toward = toward / toward.norm().clamp(min=TINY)
    weights = theta.detach()
    force = _gradients(loss, parameters)
    exact = len(violations) <= MOST_ROWS and (
        len(violations) == 1 or len(violations) * numbers <= MOST_NUMBERS
    )
    if exact:
        rows = _jacobian(violations, parameters)
        along = [(row * _column(toward, row)).square().sum(0).sqrt() for row in rows]
        pushed = [(row * _column(weights, row)).square().sum(0) for row in rows]
        push = [(row * _column(weights, row)).sum(0) for row in rows]
    else:
        along = [g.abs() for g in _gradients(violations, parameters, toward)]
        push = _gradients(violations, parameters, weights)
        pushed = [g.square() for g in push]
    coming = [f + g for f, g in zip(force, push, strict=True)]
    p, top = preconditioner(scalings, along, pushed, coming, need, shards)
    pull = shards.total(_square(force, p))
    if exact:
        flat = [row.flatten(1) for row in rows]
        m = sum((row * q.reshape(1, -1)) @ row.T for row, q in zip(flat, p, strict=True))
        assert isinstance(m, torch.Tensor)
        m = shards.total(m)
        diagonal = m.diagonal().clamp(min=0.0)
        root = diagonal.sqrt().clamp(min=TINY)
        overlap = (m.abs() / (root[:, None] * root)).fill_diagonal_(0.0)
        itself, others = _presence(live, groups, samples, diagonal)
        crowd = overlap @ others + itself
        slope = shards.total(torch.stack([row.square().sum(1) for row in flat]).sum(0)).sqrt()
        diagonal, crowd, slope = _pooled((diagonal, crowd, slope), live, groups, samples)
        response = diagonal * crowd
    else:
        diagonal, slope = _mean_diagonals(violations, parameters, p, groups, signs, shards)
        unit = toward / diagonal.sqrt().clamp(min=TINY)
        unit = unit / unit.norm().clamp(min=TINY)
        scaled = unit / diagonal.sqrt().clamp(min=TINY)
        largest = shards.total(_square(_gradients(violations, parameters, scaled), p))
        response = diagonal * (MARGIN * largest).clamp(min=1.0)
    share = torch.zeros(()) if top is None else (top / wanted.norm().clamp(min=TINY)).clamp(max=UNLIMITED)
    balance = (pull / diagonal.clamp(min=TINY)).sqrt() * (diagonal > 0)
    return Plant(response, balance, share.to(response), slope, p)


def _presence(
    live: torch.Tensor, groups: Sequence[int], samples: Sequence[Sample | None], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """In which share of the steps a constraint acts on itself, and how many constraints each stands for to others.

    A row of a sampled group acts when it is shown. In a step the share of all live rows acts, whichever they are.
    """
    itself, others = torch.ones_like(like), live.to(like.dtype)
    for mine, other, sample in zip(
        itself.split(list(groups)), others.split(list(groups)), samples, strict=True
    ):
        if sample is not None:
            mine.fill_(sample.share)
            other.fill_(sample.share * sample.live / len(other))
    return itself, others


def _pooled(
    parts: Sequence[torch.Tensor], live: torch.Tensor, groups: Sequence[int], samples: Sequence[Sample | None]
) -> tuple[torch.Tensor, ...]:
    """One plant for all rows of a sampled group: the mean over its live rows, or that of its steepest row.

    A row that is met by far may have next to no gradient on this batch (a squared error, a hinge), and a large one on
    the next batch that shows it.
    """
    split = [part.split(list(groups)) for part in parts]
    found: list[list[torch.Tensor]] = [[] for _ in parts]
    for number, (on, sample) in enumerate(zip(live.split(list(groups)), samples, strict=True)):
        if sample is not None and not bool(on.any()):
            steepest = split[0][number]
            on = steepest == steepest.max()
        for one, all_of in zip(found, split, strict=True):
            part = all_of[number]
            one.append(part if sample is None else part[on].mean().expand_as(part))
    return tuple(torch.cat(one) for one in found)


def preconditioner(
    scalings: Sequence[Scaling],
    along: Sequence[torch.Tensor],
    pushed: Sequence[torch.Tensor],
    coming: Sequence[torch.Tensor],
    need: float,
    shards: Shards,
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """P at the amplitude that is needed, and the top speed along the violation if the optimizer has one."""
    moments = [
        None if s.second_moment is None else s.kept * s.second_moment + s.newest * g.square()
        for s, g in zip(scalings, coming, strict=True)
    ]
    bounded = [(g, s.rate, v) for g, s, v in zip(along, scalings, moments, strict=True) if v is not None]
    if not bounded:
        return [torch.full_like(g, s.rate) for g, s in zip(along, scalings, strict=True)], None
    top = shards.total(torch.stack([(rate * g).sum() for g, rate, _ in bounded]).sum())
    goal = (0.5 * top).clamp(max=need)
    low, high = torch.full_like(top, -12.0), torch.full_like(top, 12.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        delta = 10.0**middle
        moved = torch.stack(
            [
                (rate * g * delta * g / (v + (delta * g).square()).sqrt().clamp(min=TINY)).sum()
                for g, rate, v in bounded
            ]
        ).sum()
        short = shards.total(moved) < goal
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    delta = 10.0**high
    found = []
    for one, g, extra, v in zip(scalings, along, pushed, moments, strict=True):
        if v is None:
            found.append(torch.full_like(g, one.rate))
        else:
            size = (v + (delta * g).square() + 0.04 * extra).sqrt()
            found.append(one.rate / size.clamp(min=1e-12))
    return found, top


def curvature(
    parameters: list[torch.Tensor],
    p: list[torch.Tensor],
    lagrangian: torch.Tensor,
    violations: torch.Tensor,
    signs: torch.Generator,
) -> torch.Tensor:
    """H: the curvature of the Lagrangian along P J^T, by one Hessian-vector product with random signs."""
    slope = torch.autograd.grad(
        lagrangian, parameters, create_graph=True, retain_graph=True, materialize_grads=True
    )
    row = _gradients(violations, parameters, _signs(violations, signs))
    direction = [q * g for q, g in zip(p, row, strict=True)]
    along = torch.stack([(s * d).sum() for s, d in zip(slope, direction, strict=True)]).sum()
    turned = _gradients(along, parameters)
    bent = torch.stack([(t * d).sum() for t, d in zip(turned, direction, strict=True)]).sum()
    return bent.clamp(min=0.0) / _square(row, p).clamp(min=TINY)


def _jacobian(violations: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of every violation, stacked: for each parameter a tensor of shape (constraints, *its shape)."""
    each = [_gradients(one, parameters) for one in violations.unbind()]
    return [torch.stack(column) for column in zip(*each, strict=True)]


def _mean_diagonals(
    violations: torch.Tensor,
    parameters: list[torch.Tensor],
    p: list[torch.Tensor],
    groups: Sequence[int],
    signs: torch.Generator,
    shards: Shards,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group's mean of the diagonal of M, and its mean slope, for each of its constraints."""
    found, slopes = [], []
    for part in violations.split(list(groups)):
        gradient = _gradients(part, parameters, _signs(part, signs))
        found.append((shards.total(_square(gradient, p)) / len(part)).expand(len(part)))
        square = shards.total(torch.stack([g.square().sum() for g in gradient]).sum())
        slopes.append((square / len(part)).sqrt().expand(len(part)))
    return torch.cat(found), torch.cat(slopes)


def _signs(like: torch.Tensor, signs: torch.Generator) -> torch.Tensor:
    return (torch.randint(2, like.shape, generator=signs) * 2 - 1).to(like)


def _column(vector: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return vector.to(row.dtype).reshape(-1, *(1,) * (row.dim() - 1))


def _square(gradient: list[torch.Tensor], p: list[torch.Tensor]) -> torch.Tensor:
    """The square of a gradient's length in the metric of P."""
    return torch.stack([(g.square() * q).sum() for g, q in zip(gradient, p, strict=True)]).sum()


def _gradients(
    value: torch.Tensor, parameters: list[torch.Tensor], weights: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The gradient of a scalar, or of a vector times weights, by parameter; zeros where there is none."""
    if not value.requires_grad:
        return [torch.zeros_like(local(p)) for p in parameters]
    weights = None if weights is None else weights.to(value.dtype)
    if is_sharded(parameters[0]):
        return backward_gradients(value, parameters, weights)
    found = torch.autograd.grad(
        value,
        parameters,
        weights,
        retain_graph=True,
        materialize_grads=True,
    )
    return [g.detach() for g in found]
