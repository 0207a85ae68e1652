"""Suggest gains to start from, from a model and one batch.

Take the gradient g of one constraint, its slope a = |g| and the curvature h = g^T Phi g / |g|^2 along it, where Phi is
the Hessian of the Lagrangian in the parameters. Training is modelled by the one-variable oscillator of `spectrum`:

    lambda^2 + (h + kp a^2) lambda + a^2 ki / eta = 0        eta: time per step, lr / (1 - momentum)

The gains are chosen so that it is critically damped. This assumes:

- The primal optimizer is gradient descent, perhaps with momentum. Or it is given as `primal`, and its step is
  -P gradient with a diagonal P, as `SelfTuned` measures it. Then g is measured in the metric of P, and eta is 1.
- The gradient is near an eigenvector of Phi, and constraints do not affect each other: each is treated alone.
- Slope and curvature change little from here to the solution. So ask again after some training.
- The batch is typical. If batches are noisy, smooth with nu, and take the mean of a few suggestions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from nupi.optim.checks import number
from nupi.plant.optimizers import Scaling, check_optimizers, scalings
from nupi.plant.response import preconditioner
from nupi.plant.shards import Shards, is_sharded
from nupi.violations import Target, as_violation
from nupi.violations.target import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nupi.lagrangian import Lagrangian
    from nupi.violations import Violation

    Gains: TypeAlias = tuple[torch.Tensor, torch.Tensor]

# The time until 2% is left, in units of 1 / rate: (1 + t) exp(-t) = 0.02 at critical damping, else exp(-t) = 0.02.
CRITICAL_SETTLING = 5.8339
SINGLE_SETTLING = math.log(50.0)
SOME_STEPS = 1000.0  # the default number of steps in which a violation settles


class Suggestion(NamedTuple):
    """Gains for one group of constraints, as tensors of the group's shape, which `NuPI` accepts.

    With a given `ki`, the step size lr of SGD, a = `slope` and h = `curvature`,

        kp = max(0, (2 a sqrt(ki / lr) - h) / a^2)

    Example:
        >>> import nupi
        >>> x = torch.tensor([0.3, 0.0], requires_grad=True)
        >>> lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
        >>> found = suggest_gains([x], lagrangian, x.square().sum(), {"sum": x.sum() - 1}, lr=0.1, ki=0.4)["sum"]
        >>> found.kp
        tensor([1.8284])
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=found.ki, kp=found.kp)
    """

    ki: torch.Tensor
    kp: torch.Tensor
    slope: torch.Tensor
    """a, the norm of each constraint's gradient."""
    curvature: torch.Tensor
    """h, the curvature of the Lagrangian along the gradient."""


def suggest_gains(
    model: torch.nn.Module | Iterable[torch.Tensor],
    lagrangian: Lagrangian,
    loss: torch.Tensor,
    violations: Mapping[str, torch.Tensor | Violation],
    *,
    lr: float | None = None,
    primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
    steps: float | None = None,
    ki: float | None = None,
    momentum: float = 0.0,
) -> dict[str, Suggestion]:
    """Suggest ki and kp for every constraint, by Hessian-vector products on one batch.

    With slope a = |g| of a constraint and curvature h = g^T Phi g / |g|^2 along g, the gains make both roots of

        lambda^2 + (h + kp a^2) lambda + a^2 ki / eta = 0        eta = lr / (1 - momentum)

    equal: critical damping.

    Give `steps`, the number of primal steps within which a violation should settle (2% of it left), to get both gains.
    Or give a `ki`, such as a step size that works for gradient ascent, to get the kp that damps it. If the model's own
    curvature damps enough, kp is 0. The cost is two backward passes per constraint.

    Args:
        model: the model, or its parameters.
        lagrangian: the Lagrangian. Its present multipliers weigh the curvature of the constraints.
        loss: the objective on the batch, with its graph.
        violations: constraint name to violations on the batch, with their graph. `Indexed` and `Averaged` ones must
            have all constraints of their group.
        lr: the step size of the primal SGD.
        primal: the model's optimizer, or several, instead of `lr` and `momentum`: SGD, Adam, AdamW, NAdam, RMSprop or
            Adagrad, after its first step. Slope and curvature are then measured in the metric of its step.
        steps: the steps within which a violation should settle.
        ki: the integral gain, instead of `steps`.
        momentum: the momentum of the primal SGD.

    Example:
        >>> import nupi
        >>> x = torch.tensor([0.3, 0.0], requires_grad=True)
        >>> lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
        >>> gains = suggest_gains([x], lagrangian, x.square().sum(), {"sum": x.sum() - 1}, lr=0.1, ki=0.4)
        >>> gains["sum"].kp, gains["sum"].slope, gains["sum"].curvature
        (tensor([1.8284]), tensor([1.4142]), tensor([2.]))
    """
    if (steps is None) == (ki is None):
        raise ValueError(f"give either steps or ki, but steps={steps} and ki={ki} came")
    if (lr is None) == (primal is None):
        raise ValueError(f"give either lr or primal, but lr={lr} and primal={primal} came")
    for name, value in (("lr", lr), ("steps", steps), ("ki", ki)):
        given = 1.0 if value is None else number(name, value)
        if not 0.0 < given <= torch.finfo(torch.float32).max:
            raise ValueError(f"{name}={given:g} must be positive and finite, in float32 too")
    if steps is not None and steps < 1.0:
        raise ValueError(f"steps={steps} must be at least 1: it is a number of primal steps")
    if not 0.0 <= number("momentum", momentum) < 1.0:
        raise ValueError(f"momentum={momentum} must be in [0, 1), as SGD's is")
    parameters = [
        p for p in (model.parameters() if isinstance(model, torch.nn.Module) else model) if p.requires_grad
    ]
    if not parameters:
        raise ValueError("model has no parameter that requires a gradient; unfreeze what is to be trained")
    value = lagrangian(loss, violations)
    for name, measure in (("loss", loss), *((f"violations[{key!r}]", v) for key, v in violations.items())):
        if isinstance(measure, torch.Tensor) and not bool(measure.isfinite().all()):
            raise ValueError(
                f"{name} is nan or infinite on this batch, so the gains would be too; take another batch"
            )
    eta = 1.0 if lr is None else lr / (1.0 - momentum)
    found = None if primal is None else _scalings(primal)
    if found is not None:
        parameters = [one.parameter for one in found]
    slopes = _gradients(value, parameters, create_graph=True)
    suggestions = {}
    for name, violation in violations.items():
        errors = _errors(lagrangian, name, violation)
        shape = errors.shape
        measured = [
            _slope_and_curvature(name, one, slopes, parameters, found, steps) for one in errors.reshape(-1)
        ]
        slope, curvature = (torch.stack(part).reshape(shape) for part in zip(*measured, strict=True))
        if steps is not None:
            gains = _settling(slope, curvature, eta, steps)
        else:
            assert ki is not None
            gains = _damping(slope, curvature, eta, ki)
        if not all(bool(gain.isfinite().all()) for gain in gains):
            raise ValueError(
                f"the gains of {name!r} would not be finite: its slope is {slope.max():.3g} in the metric of the "
                f"model's step of {eta:.3g}; divide the violation by its scale, or give another lr, steps or ki"
            )
        suggestions[name] = Suggestion(*gains, slope, curvature)
    return suggestions


def _scalings(primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer]) -> list[Scaling]:
    """The factors by which the optimizers' next steps scale a gradient."""
    found = scalings(check_optimizers(primal))
    if found is None:
        raise ValueError("primal has not taken a step yet, so its scaling is not known; train a little first")
    if any(is_sharded(one.parameter) for one in found):
        raise TypeError(
            "the model's parameters are sharded (fully_shard), which torch cannot differentiate twice; ask before they "
            "are sharded, or use SelfTuned, which needs no second derivatives"
        )
    return found


def _errors(lagrangian: Lagrangian, name: str, given: torch.Tensor | Violation) -> torch.Tensor:
    """The errors of a whole group with their graph, which are the Lagrangian's derivatives in the multipliers."""
    theta = lagrangian.multipliers[name].clone().requires_grad_()
    target = Target(name, lagrangian.constraints[name], theta, Written({}))
    violation = as_violation(name, given)
    move = violation.error(target)
    shown = 0 if move is None else len(theta) if move.rows is None else len(move.rows)
    if theta.dim() and shown < len(theta):
        raise ValueError(
            f"violations[{name!r}] has {shown} of {len(theta)} constraints, but a suggestion needs all of a group; "
            "give a larger batch"
        )
    (errors,) = torch.autograd.grad(violation.term(target), theta, create_graph=True)
    return errors


def _settling(a: torch.Tensor, h: torch.Tensor, eta: float, steps: float) -> Gains:
    """Both gains from the time to settle: those of critical damping if its kp is >= 0, else kp = 0."""
    rate = CRITICAL_SETTLING / (steps * eta)
    kp = (2.0 * rate - h) / a.square()
    slow = SINGLE_SETTLING / (steps * eta)
    ki = torch.where(kp >= 0.0, rate * rate, slow * (h - slow)) * eta / a.square()
    return ki, kp.clamp(min=0.0)


def _damping(a: torch.Tensor, h: torch.Tensor, eta: float, ki: float) -> Gains:
    """The kp of critical damping for a given ki, or 0 if the curvature alone damps more."""
    kp = (2.0 * a * math.sqrt(ki / eta) - h) / a.square()
    return torch.full_like(a, ki), kp.clamp(min=0.0)


def _slope_and_curvature(
    name: str,
    violation: torch.Tensor,
    slopes: list[torch.Tensor],
    parameters: list[torch.Tensor],
    found: list[Scaling] | None,
    steps: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope |g| and curvature d^T Phi d along d = g / |g| of one constraint; in the metric of P, d = P g / |g|."""
    gradient = _gradients(violation, parameters)
    direction = gradient
    if found is not None:
        # Adam's P depends on the size of its steps, and that on the number of steps for the violation to settle.
        need = float(violation.detach().abs()) / (steps or SOME_STEPS)
        coming = [slope.detach() for slope in slopes]
        metric, _ = preconditioner(
            found, [g.abs() for g in gradient], [0.0 * g for g in gradient], coming, need, Shards(parameters)
        )
        direction = [p * g for p, g in zip(metric, gradient, strict=True)]
    slope = torch.stack([(d * g).sum() for d, g in zip(direction, gradient, strict=True)]).sum().sqrt()
    if not bool(slope > 0.0):
        raise ValueError(
            f"the gradient of constraint {name!r} is {slope.item():g} on this batch, so no multiplier can "
            "move it; check that its violation depends on the model, or take another batch"
        )
    along = torch.stack([(g * d).sum() for g, d in zip(slopes, direction, strict=True)]).sum() / slope
    turned = _gradients(along, parameters)
    curvature = torch.stack([(t * d).sum() for t, d in zip(turned, direction, strict=True)]).sum() / slope
    return slope.detach(), curvature.detach()


def _gradients(
    value: torch.Tensor, parameters: list[torch.Tensor], *, create_graph: bool = False
) -> list[torch.Tensor]:
    """The gradient by parameter, with zeros for parameters on which `value` does not depend."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    return list(
        torch.autograd.grad(
            value, parameters, retain_graph=True, create_graph=create_graph, materialize_grads=True
        )
    )
