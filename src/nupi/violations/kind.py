"""The base class of violations: its term in the Lagrangian, its error, and how processes join it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nupi.constraints import Bounds, Constraint
    from nupi.violations.target import Target

Reduce: TypeAlias = Literal["mean", "sum"]


class Move(NamedTuple):
    """One group of multipliers, and the error that will move it. `Target.move` makes it.

    Attributes:
        name: the name of the group.
        multiplier: its multipliers.
        error: shaped like the multipliers; or, if `rows` is given, like those rows of them.
        bounds: within which the multipliers stay.
        rows: the rows that move; a row that occurs twice has the same error twice.
        mask: if `rows` is None: which rows may move; None means all.
        partial: whether rows without an error must not move, even if an optimizer has momentum for them.

    Example:
        >>> import torch, nupi
        >>> from nupi.violations import Dense, Target, Violation
        >>> class Doubled(Violation):
        ...     'Twice a tensor.'
        ...     def __init__(self, values):
        ...         self.values = values
        ...     def term(self, target):
        ...         return Dense(2 * self.values).term(target)
        ...     def error(self, target):
        ...         return target.move(2 * self.values.detach())  # a Move
        >>> lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> lagrangian.ascend(dual, {"rate": Doubled(torch.tensor([0.5]))})
        >>> lagrangian.multipliers["rate"]
        tensor([0.1000])
    """

    name: str
    multiplier: torch.Tensor
    error: torch.Tensor
    bounds: Bounds | None
    rows: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    partial: bool = False


class Parts(NamedTuple):
    """The part of a violation that one process has, in a form that can be added: in float64, without a graph.

    Attributes:
        values: of the group's shape.
        weights: one for each row of the group, or None.

    Example:
        >>> import torch
        >>> mine = Parts(torch.tensor([1.5]), torch.tensor([3.0]))
        >>> theirs = Parts(torch.tensor([0.5]), torch.tensor([1.0]))
        >>> (mine.values + theirs.values) / (mine.weights + theirs.weights)  # what `Averaged.joined` makes of them
        tensor([0.5000])
    """

    values: torch.Tensor
    weights: torch.Tensor | None = None


class Violation(ABC):
    """The base class of the kinds of violations: one way to say how far constraints are violated.

    A subclass has `term`, its summand in L(x, theta) = f(x) + sum of terms, and `error`, which moves the multipliers.
    To join it over processes (`Lagrangian(reduce=...)`) it needs `parts` and `joined` too. To average it over
    micro-batches in a front end it needs `detached` and `average`.

    Example:
        >>> import torch, nupi
        >>> from nupi.violations import Dense
        >>> class Worst(Violation):
        ...     'The largest violation over the rows of a batch.'
        ...     def __init__(self, rows):
        ...         self.rows = rows
        ...     def term(self, target):
        ...         return Dense(self.rows.amax(dim=0)).term(target)
        ...     def error(self, target):
        ...         return Dense(self.rows.amax(dim=0)).error(target)
        >>> lagrangian = nupi.Lagrangian({"load": nupi.Inequality(2)})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> lagrangian.ascend(dual, {"load": Worst(torch.tensor([[0.5, -1.0], [0.2, -0.3]]))})
        >>> lagrangian.multipliers["load"]
        tensor([0.0500, 0.0000])
    """

    label: ClassVar[str] = ""
    """What errors call it; the class's name unless given."""

    registry: ClassVar[dict[str, type[Violation]]] = {}
    """All kinds by label: a process that has no violation of a kind may have to join those of others."""

    by_rows: ClassVar[bool] = False
    """Whether a large group's part is sent row by row. Such a kind has `checked` and `added_up`, as `Indexed` has."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.label = cls.__dict__.get("label") or cls.__name__
        Violation.registry[cls.label] = cls

    @abstractmethod
    def term(self, target: Target) -> torch.Tensor:
        """The term of this violation in the Lagrangian: a scalar with the graph of the violation."""

    @abstractmethod
    def error(self, target: Target) -> Move | None:
        """The error that moves the multipliers, in their dtype and without a graph; None if nothing was measured."""

    def infeasibility(self, target: Target) -> torch.Tensor | None:
        """How far the measured constraints are from being met; None if nothing was measured."""
        move = self.error(target)
        return None if move is None else target.constraint.infeasibility(move.error)

    def measured(self, constraint: Constraint) -> torch.Tensor | None:  # noqa: ARG002 - for subclasses
        """The violations of the whole group, without a graph; None if some of them were not measured."""
        raise TypeError(
            f"a violation that is {self.label} does not say whether the whole group was measured, so no model can "
            "be judged by it; give its class the method measured"
        )

    def adds_up(self, reduce: Reduce) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the joined violation is a sum over processes, and not an average."""
        return False

    def moving(self) -> Violation:
        """The violation that moves the multipliers; this one, unless a subclass has another."""
        return self

    def detached(self) -> Violation:
        """The same violation without its graph, to keep it for later."""
        return self

    @classmethod
    def average(cls, several: Sequence[Any], batches: int, constraint: Constraint | None) -> Violation | None:  # noqa: ARG003
        """The violation that moves the multipliers after `batches` micro-batches, some of which had these; or None."""
        return None

    def parts(self, target: Target) -> Parts:
        """What can be added over processes, and over the batches of an evaluation."""
        raise TypeError(
            f"the violation of {target.name!r} is {self.label}, which cannot be added up over processes or "
            "batches; give its class the methods parts and joined, or add it up yourself and leave out reduce"
        )

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move | None:  # noqa: ARG003 - for subclasses
        """The error from the total over processes; `ranks` of them had this violation."""
        raise TypeError(
            f"the violation of {target.name!r} is {cls.label}, which has `parts` but no `joined`, which computes the "
            "error from their total; give its class both"
        )
