"""Measure gradients of constraints, to find out whether the model could still meet a constraint."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from nupi.monitor.advice import short
from nupi.monitor.columns import WHOLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nupi.lagrangian import Lagrangian
    from nupi.monitor.columns import Columns
    from nupi.monitor.finding import Finding

_OPPOSED = -0.8  # at or below this cosine, other constraints count as pushing against this one


class Gradient(NamedTuple):
    """The gradient of one constraint in the parameters of the model."""

    violation: float
    """The violation at the measurement, as a positive number."""
    reach: float
    """How much the violation would fall if the parameters moved by their own norm, to first order."""
    against: float
    """The cosine of its gradient with the sum of the others' gradients; 0 if that sum is less than half as strong."""
    opponent: str = ""
    """The group that pushes most against it, if any does."""
    number: int | None = None
    """The constraint of that group that pushes most, if the group is small enough to measure each."""

    @property
    def small(self) -> bool:
        """Whether the parameters would have to move by more than their own norm to meet the constraint."""
        return self.reach < self.violation

    @property
    def opposed(self) -> bool:
        """Whether other constraints push the other way as strongly."""
        return self.against < _OPPOSED


def confirm(
    findings: Sequence[Finding], columns: Columns, lagrangian: Lagrangian, violations: Mapping[str, object]
) -> list[Finding]:
    """Check findings of the kind "infeasible" by gradients. If a gradient is neither small nor opposed, it is "slow".

    Args:
        findings: the findings of the record.
        columns: the columns of the record.
        lagrangian: the Lagrangian with the constraints and multipliers.
        violations: violations as for `ascend`, with their graph. Kinds other than tensors are not measured.
    """
    errors = {
        name: lagrangian.constraints[name].errors(violation)
        for name, violation in violations.items()
        if isinstance(violation, torch.Tensor) and name in lagrangian.constraints
    }
    if errors and not any(error.requires_grad for error in errors.values()):
        raise ValueError(
            "no violation has a graph, so no gradient can be measured; give violations from the model's forward pass, "
            "not detached and not under torch.no_grad(). If that is so already, they depend on no parameter, and no "
            "multiplier can change them"
        )
    told = []
    for finding in findings:
        name = columns.group_of(finding.constraint)
        if finding.kind == "infeasible" and name in errors:
            index = columns.groups[name].index_of(finding.constraint)
            seen = measure(errors, lagrangian.multipliers, name, index)
            told.append(_confirmed(finding, seen, _named(seen, columns)))
        else:
            told.append(finding)
    return told


def _named(seen: Gradient, columns: Columns) -> str:
    group = columns.groups.get(seen.opponent)
    return seen.opponent if group is None or seen.number is None else group.place(seen.number)


def _confirmed(finding: Finding, seen: Gradient, opponent: str) -> Finding:
    if seen.opposed:
        why = (
            f"other constraints push the other way, {opponent!r} most of all (the cosine of the gradients is "
            f"{seen.against:.2f})"
        )
    elif seen.reach == 0.0:
        why = "its gradient is 0: it does not depend on the parameters"
    else:
        why = (
            f"moving the parameters by their own norm would lower the violation of {short(seen.violation)} by "
            f"{short(seen.reach)}, to first order"
        )
    if seen.opposed or seen.small:
        return replace(finding, evidence=f"{finding.evidence}; {why}")
    return replace(
        finding,
        kind="slow",
        severity="moderate",
        evidence=f"{finding.evidence}; but no other constraint opposes it, and {why}",
        advice="Raise the step size of the model, or train longer: its gradient says that it can be met",
    )


def measure(
    errors: Mapping[str, torch.Tensor], multipliers: Mapping[str, torch.Tensor], name: str, index: int
) -> Gradient:
    """Measure the gradient of one constraint, and compare it with those of all others.

    Args:
        errors: the errors by group, with their graph, which is kept.
        multipliers: the multipliers by group.
        name: the name of the group.
        index: the index of the constraint in the flattened group.
    """
    one = errors[name].reshape(-1)[index]
    theta = float(multipliers[name].detach().reshape(-1)[index])
    leaves = _leaves([error for error in errors.values() if error.requires_grad])
    mine = _gradients(one, leaves)
    own = [theta * g for g in mine]

    def pushes(names: Collection[str]) -> list[torch.Tensor]:
        """The gradient of these groups' terms in the Lagrangian, without the one constraint."""
        total = sum((multipliers[key].detach() * errors[key]).sum() for key in names)
        together = _gradients(total, leaves)
        return [a - b for a, b in zip(together, own, strict=True)] if name in names else together

    others = pushes(errors.keys())
    pushed, pushing = _dot(own, own) ** 0.5, _dot(others, others) ** 0.5
    against = _dot(own, others) / (pushed * pushing) if pushed * pushing > 0.0 else 0.0
    reach = (_dot(mine, mine) * _dot(leaves, leaves)) ** 0.5
    # A much weaker push cannot keep the constraint from being met.
    seen = Gradient(abs(float(one.detach())), reach, against if pushing > 0.5 * pushed else 0.0)
    if not seen.opposed:
        return seen
    group = min(errors, key=lambda key: _dot(own, pushes([key])))
    skip = index if group == name else None
    return seen._replace(
        opponent=group, number=_most_against(own, multipliers[group].detach() * errors[group], leaves, skip)
    )


def _most_against(
    own: Sequence[torch.Tensor], pushes: torch.Tensor, leaves: Sequence[torch.Tensor], skip: int | None
) -> int | None:
    """The one of these that pushes most against `own`, except number `skip`; None if there are too many to measure."""
    each = pushes.reshape(-1)
    if len(each) > WHOLE:
        return None
    numbers = [number for number in range(len(each)) if number != skip]
    return min(numbers, key=lambda number: _dot(own, _gradients(each[number], leaves)))


def _gradients(value: torch.Tensor | int, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of a value with respect to each leaf; zeros for leaves on which it does not depend."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    with torch.enable_grad():
        try:
            found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
            return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
        except RuntimeError as error:
            raise ValueError(
                "the gradient of a violation cannot be measured; give the violations before backward() has freed "
                f"their graph. torch says: {error}"
            ) from error


def _dot(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    return math.fsum(
        float((x.detach().double() * y.detach().double()).sum()) for x, y in zip(a, b, strict=True)
    )


def _leaves(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves of the graph of these values."""
    found: dict[int, torch.Tensor] = {id(value): value for value in values if value.is_leaf}
    todo, seen = [value.grad_fn for value in values if value.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        todo += [following for following, _ in node.next_functions if following is not None]
    return list(found.values())
