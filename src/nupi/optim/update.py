"""What a dual optimizer defines: its gains, its state, and one pure update.

The update moves one tensor, or a list of tensors with the same options. The optimizer, `nupi.sweep` and all other
users of the formula call the same function.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from nupi.constraints import Bounds
    from nupi.rule import Gain, Tensors

Options: TypeAlias = "Mapping[str, Any]"
Gains: TypeAlias = "dict[str, Gain]"
State: TypeAlias = "dict[str, Tensors]"
Update = TypeVar("Update", bound="Callable[..., None]")


def pointwise(update: Update) -> Update:
    """Mark an update in which no multiplier depends on another, so that tensors may be joined and moved as one."""
    update.pointwise = True  # type: ignore[attr-defined]
    return update


class Work(NamedTuple):
    """A parameter that will move, with its error, its options and its bounds."""

    group: dict[str, Any]
    param: torch.Tensor
    error: torch.Tensor  # as it is to be ascended
    bounds: Bounds | None = None
    rows: torch.Tensor | None = (
        None  # if only some rows move, which; over the `leading` dimensions, flattened
    )
    leading: int = 1


class Batch(NamedTuple):
    """Whole parameters of one group that one call of `update` moves: a single one, or a list of them."""

    works: list[Work]
    theta: Tensors
    state: State
    first: bool


class Updated:
    """The part of a dual optimizer that a subclass writes: `scaled_gains`, `slots` and `update`."""

    gain_names: ClassVar[tuple[str, ...]]
    """Param-group entries that are a number, or a tensor that broadcasts to each parameter of the group."""
    slot_names: ClassVar[tuple[str, ...]]
    """All the state that a parameter may have, each tensor shaped like it."""
    integrators: ClassVar[tuple[str, ...]] = ()
    """State that stands for the multiplier's past, which a restart clears."""
    late_slots: ClassVar[tuple[str, ...]] = ()
    """State that may begin, at 0, after the first step."""
    lasting_slots: ClassVar[tuple[str, ...]] = ()
    """State that may be there before the first step, and is not begun anew with it."""
    writes_groups: ClassVar[bool] = False
    """Whether a step writes to its param groups: a refused one then has them put back."""

    @staticmethod
    @abstractmethod
    def scaled_gains(options: Options) -> Gains:
        """The numbers that `update` takes, with `lr` multiplied in."""

    @staticmethod
    @abstractmethod
    def slots(options: Options, bounds: Bounds | None) -> tuple[str, ...]:
        """The state that `update` needs with these options."""

    @staticmethod
    @abstractmethod
    def update(
        theta: Tensors,
        state: State,
        e: Tensors,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """Move `theta` and its state in place by one step; the caller then projects `theta`.

        Args:
            theta: multipliers: a tensor, or a list of tensors with the same options.
            state: the slots by name, each like `theta`. In the first step all of them are 0, except `lasting_slots`.
                Empty while idle.
            e: the errors, like `theta`.
            gains: what `scaled_gains` returned; numbers, or tensors that broadcast to a single `theta`.
            options: the param group, for options that are not numbers.
            bounds: the bounds to which `theta` will be projected, or None.
            first: whether this is the first step of all of them.
        """

    @staticmethod
    def idle(options: Options) -> bool:  # noqa: ARG004 - for subclasses
        """Whether a parameter that has no state yet needs none with these options."""
        return False
