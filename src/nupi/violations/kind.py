"""What every kind of violation is: its term in the Lagrangian, its error, and how processes join it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from nupi.constraints import Bounds, Constraint
    from nupi.violations.base import Target

Reduce: TypeAlias = Literal["mean", "sum"]


class Move(NamedTuple):
    """One group of multipliers with the error that is to move it."""

    name: str
    multiplier: torch.Tensor
    error: torch.Tensor  # shaped like the multipliers; or, if `rows` is given, like those rows of them
    bounds: Bounds | None
    rows: torch.Tensor | None = None  # which rows; a row that comes twice has the same error twice
    mask: torch.Tensor | None = None  # if rows is None: which rows may move; None means all
    partial: bool = False  # whether rows without an error must stay put, whatever an optimizer remembers


class Parts(NamedTuple):
    """What a process has of a violation, in a form that adds up; see `exact` for its type."""

    values: torch.Tensor  # of the group's shape
    weights: torch.Tensor | None = None  # one for each row of the group


class Violation(ABC):
    """One way to say how far constraints are violated.

    A subclass has `term` and `error`. To be joined over processes (`Lagrangian(reduce=...)`) it also has `parts` and
    `joined`; to be averaged over micro-batches by a front end, `detached` and `average`.
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
        """What this violation adds to the Lagrangian: a scalar, differentiable in what the violation came from."""

    @abstractmethod
    def error(self, target: Target) -> Move | None:
        """The error that moves the multipliers, in their dtype and without a graph; None if nothing was seen."""

    def infeasibility(self, target: Target) -> torch.Tensor | None:
        """How far what was seen is from what is asked for; None if nothing was seen."""
        move = self.error(target)
        return None if move is None else target.constraint.infeasibility(move.error)

    def measured(self, constraint: Constraint) -> torch.Tensor | None:  # noqa: ARG002 - for subclasses
        """The violations of the whole group, without a graph; None if some of them were not measured."""
        raise TypeError(
            f"a violation that is {self.label} does not say whether the whole group was measured, so that no model can "
            "be judged by it; give its class the method measured"
        )

    def adds_up(self, reduce: Reduce) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the joined violation is a sum over processes, and not an average."""
        return False

    def moving(self) -> Violation:
        """What moves the multipliers, if that is another violation than this."""
        return self

    def detached(self) -> Violation:
        """The same without a graph, to be kept for later."""
        return self

    @classmethod
    def average(cls, several: Sequence[Any], batches: int, constraint: Constraint | None) -> Violation | None:  # noqa: ARG003
        """What moves the multipliers after `batches` micro-batches, some of which had these; None if nothing does."""
        return None

    def parts(self, target: Target) -> Parts:
        """What adds up over processes, and over the batches of an evaluation."""
        raise TypeError(
            f"the violation of {target.name!r} is {self.label}, which cannot be added up over processes or "
            "batches; give its class the methods parts and joined, or add it up yourself and leave reduce out"
        )

    @classmethod
    def joined(cls, target: Target, total: Parts, ranks: int, reduce: Reduce) -> Move | None:  # noqa: ARG003 - for subclasses
        """The error from the total over processes; `ranks` of them had this violation."""
        raise TypeError(
            f"the violation of {target.name!r} is {cls.label}, which has parts but no `joined` to make an error of "
            "their total; give its class both"
        )
