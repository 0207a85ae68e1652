"""Multipliers that a module computes from features, for more constraints than multipliers fit in memory.

The dual optimizer then moves the module's parameters phi. Their error is the gradient in phi of the sum of all
theta_i(phi) c_i. One flat tensor holds them. It is moved, checked and saved like any group of multipliers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn
from torch.func import functional_call

from nupi.constraints import Bounds, Constraint, Equality, Inequality
from nupi.violations import Move, Parts, Violation
from nupi.violations.values import check_device, check_values

if TYPE_CHECKING:
    from nupi.violations import Target
    from nupi.violations.kind import Reduce

Projects = Literal["outputs", "parameters"]


class Implicit(Constraint):
    """Constraints whose multipliers a module computes from features of each constraint: theta_i = m(features_i).

    Give violations as `Featured(values, features)`, for the constraints of a batch. The Lagrangian's tensor of this
    name holds the module's parameters, flat. The module that you pass is copied and never written to.

    Args:
        module: maps features (n, ...) to n multipliers, of shape (n,) or (n, 1). It is used in eval mode. Its outputs
            should be near 0 at first, because they are the initial multipliers.
        kind: `Inequality()`, with multipliers in [0, upper], or `Equality()`, with multipliers of either sign.
        project: how multipliers of inequalities stay within their bounds. "outputs": the outputs of the module are
            clamped, and a constraint whose multiplier is at a bound does not push it further. "parameters": every
            parameter is projected to be >= 0 after each step, like a dense multiplier. This is right for a linear
            module without bias on features that are >= 0.

    Example:
        >>> import nupi
        >>> module = nn.Linear(4, 1, bias=False)
        >>> _ = nn.init.zeros_(module.weight)
        >>> implicit = Implicit(module)
        >>> lagrangian = nupi.Lagrangian({"each": implicit})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.5)
        >>> features = torch.eye(4)[[0, 2]]  # of the two constraints that this batch has
        >>> lagrangian.ascend(dual, {"each": Featured(torch.tensor([1.0, -1.0]), features)})
        >>> implicit.multipliers(lagrangian.multipliers["each"], torch.eye(4))
        tensor([0.5000, 0.0000, 0.0000, 0.0000])
    """

    kind = "an implicit constraint"
    shapes = "it computes multipliers from features: give nupi.Featured(values, features)"

    def __init__(
        self, module: nn.Module, kind: Constraint | None = None, *, project: Projects = "outputs"
    ) -> None:
        kind = Inequality() if kind is None else kind
        if type(kind) not in (Inequality, Equality) or getattr(kind, "restart", False):
            raise TypeError(f"kind must be Equality() or Inequality(upper=...), but {kind!r} came")
        if not isinstance(module, nn.Module) or not list(module.parameters()):
            raise TypeError(f"module must be a torch module with parameters, but {module!r} came")
        if project not in ("outputs", "parameters"):
            raise ValueError(f'project must be "outputs" or "parameters", but {project!r} came')
        if project == "parameters" and kind.bounds is not None and kind.bounds.upper is not None:
            raise ValueError('project="parameters" cannot keep multipliers below upper; use "outputs"')
        self.project = project
        self.of = kind
        self.bounds = kind.bounds
        self._module = deepcopy(module).eval().requires_grad_(requires_grad=False)
        start = torch.cat([param.detach().reshape(-1) for param in module.parameters()])
        super().__init__(len(start), init=start)

    @property
    def parameter_bounds(self) -> Bounds | None:
        """The bounds of the module's parameters."""
        return self.bounds if self.project == "parameters" else None

    def multipliers(self, parameters: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The multipliers of constraints with these features, within their bounds.

        Args:
            parameters: the module's parameters, as in `lagrangian.multipliers[name]`.
            features: one row for each constraint.
        """
        outputs = self.outputs(parameters, features)
        return outputs if self.bounds is None else self.bounds.clamped(outputs)

    def outputs(self, parameters: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The outputs of the module with these parameters, one number for each row."""
        named = dict(self._module.named_parameters())
        parts = parameters.split([param.numel() for param in named.values()])
        values: dict[str, torch.Tensor] = {
            name: part.view(param.shape) for (name, param), part in zip(named.items(), parts, strict=True)
        }
        for name, buffer in self._module.named_buffers():
            values[name] = buffer.to(parameters.device)
        outputs: torch.Tensor = functional_call(self._module, values, (features,))
        if outputs.shape not in ((len(features),), (len(features), 1)):
            raise ValueError(
                f"the module of an implicit constraint gave shape {tuple(outputs.shape)} for {len(features)} rows of "
                "features; it must give one multiplier a row"
            )
        return outputs.reshape(-1)

    def errors(self, violation: torch.Tensor) -> torch.Tensor:
        """Refuse violations without features."""
        raise TypeError(
            f"{self!r} computes multipliers from features, but a violation of shape {tuple(violation.shape)} came "
            "without any; give nupi.Featured(values, features)"
        )

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest violation, as the kind of constraint defines it."""
        return self.of.largest(values)

    def misfit(self, theta: torch.Tensor) -> str | None:
        """Parameters may have any value, unless they are projected."""
        return super().misfit(theta) if self.project == "parameters" else None

    def _options(self) -> list[str]:
        return [type(self._module).__name__, repr(self.of), f"project={self.project!r}"]


@dataclass(frozen=True, eq=False)
class Featured(Violation):
    """Violations of some constraints, and the features from which `Implicit` computes their multipliers.

    With theta_k = module(features_k), L(x) = f(x) + sum over k of theta_k values_k.

    Args:
        values: one violation for each of these constraints, shape (n,).
        features: the input of the module, one row for each of these constraints. No gradient flows into them.

    Example:
        >>> Featured(torch.tensor([0.5, -0.1]), torch.zeros(2, 3))
        Featured(2 values with features of shape (3,))
    """

    values: torch.Tensor
    features: torch.Tensor

    label: ClassVar[str] = "Featured"

    def __post_init__(self) -> None:
        if not isinstance(self.values, torch.Tensor) or not isinstance(self.features, torch.Tensor):
            raise TypeError(
                f"Featured takes two tensors, but values is a {type(self.values).__name__} and features a "
                f"{type(self.features).__name__}; wrap them in torch.tensor"
            )
        if self.values.dim() != 1 or not self.features.dim() or len(self.features) != len(self.values):
            raise ValueError(
                f"values has shape {tuple(self.values.shape)} and features {tuple(self.features.shape)}; there must be "
                "one number, and one row of features, for each constraint"
            )

    def __repr__(self) -> str:
        return f"Featured({len(self.values)} values with features of shape {tuple(self.features.shape[1:])})"

    def term(self, target: Target) -> torch.Tensor:
        """The sum of theta c(x) over these constraints, or its augmented form."""
        implicit = self._checked(target)
        theta = implicit.multipliers(target.multiplier.detach(), self._features(target))
        return implicit.term(theta.detach(), self.values, target.penalty)

    def error(self, target: Target) -> Move | None:
        """The gradient of that sum in the module's parameters."""
        return self._move(target, self._gradient(target)) if len(self.values) else None

    def infeasibility(self, target: Target) -> torch.Tensor | None:
        """The infeasibility of these constraints (not of the module's parameters)."""
        return self._checked(target).infeasibility(self.values.detach()) if len(self.values) else None

    def measured(self, constraint: Constraint) -> torch.Tensor | None:  # noqa: ARG002
        """The values of the constraints that were evaluated; None if there were none."""
        return self.values.detach() if len(self.values) else None

    def adds_up(self, reduce: Reduce) -> bool:  # noqa: ARG002
        """Constraints of all processes are added, with either value of `reduce`."""
        return True

    def parts(self, target: Target) -> Parts:
        """The gradient, which is summed over processes."""
        return Parts(self._gradient(target).double())

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move:  # noqa: ARG003
        """The gradient over the constraints of all processes."""
        return cls._move(target, total.values)

    @staticmethod
    def _move(target: Target, gradient: torch.Tensor) -> Move:
        implicit = target.constraint
        assert isinstance(implicit, Implicit)
        error = gradient.to(target.multiplier.dtype)
        return Move(target.name, target.multiplier, error, implicit.parameter_bounds)

    def _gradient(self, target: Target) -> torch.Tensor:
        implicit = self._checked(target)
        values = self.values.detach().to(target.multiplier.dtype)
        with torch.enable_grad():
            parameters = target.multiplier.detach().clone().requires_grad_()
            outputs = implicit.outputs(parameters, self._features(target))
            bounds = implicit.bounds
            if bounds is not None and implicit.project == "outputs":
                # At a bound, a violation that would push its multiplier further is ignored. Otherwise it would wind up.
                low, high = (outputs.detach() <= 0) & (values < 0), torch.zeros_like(values, dtype=torch.bool)
                if bounds.upper is not None:
                    high = (outputs.detach() >= bounds.upper) & (values > 0)
                values = values.masked_fill(low | high, 0.0)
            (gradient,) = torch.autograd.grad(outputs, parameters, values)
        return gradient

    def _features(self, target: Target) -> torch.Tensor:
        features = self.features.detach()
        check_device(f"the features of {target.name!r}", features, target)
        return features.to(target.multiplier.dtype) if features.is_floating_point() else features

    def _checked(self, target: Target) -> Implicit:
        if not isinstance(target.constraint, Implicit):
            raise TypeError(
                f"the violation of {target.name!r} is Featured, but its constraint is {target.constraint!r}; make it "
                "nupi.Implicit(module), or give a tensor, Indexed or Averaged"
            )
        check_values(target, self.values)
        return target.constraint
