"""Keep nan and inf out of multipliers: the errors, and the refusals that a device reports later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nupi.violations import Move


class NonFiniteViolationError(ValueError):
    """A violation was nan or infinite. No multiplier and no controller state has changed.

    Example:
        >>> import torch, nupi
        >>> lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        >>> try:
        ...     lagrangian.ascend(dual, {"norm": torch.tensor(torch.nan)})
        ... except nupi.NonFiniteViolationError as error:
        ...     print(error.names)
        ('norm',)
    """

    _what = (
        "violations of {which} are not finite (nan or inf); every multiplier and all controller state "
        "stay as they were."
    )
    _advice = (
        "Check how the violation is computed: a mean over an empty group, a division by zero, a model that "
        "diverged (on an accelerator also: an index out of range, or a gain so large that the step overflows)"
    )

    def __init__(self, names: Sequence[str], text: str = "") -> None:
        self.names = tuple(names)
        super().__init__(text or self._text(""))

    def add_record(self, shown: str) -> None:
        """Add the text of a listener, such as a monitor, before the general advice."""
        self.args = (self._text(f" {shown} If that does not explain it:"),)

    def _text(self, between: str) -> str:
        which = ", ".join(repr(name) for name in self.names)
        return f"{self._what.format(which=which)}{between} {self._advice}"

    def __reduce__(self) -> tuple[type[NonFiniteViolationError], tuple[tuple[str, ...], str]]:
        return type(self), (self.names, str(self))


class NonFiniteMultiplierError(NonFiniteViolationError):
    """A step on finite violations would have made multipliers or their state overflow. Nothing has changed.

    Example:
        >>> import torch, nupi
        >>> lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=1e30)
        >>> try:
        ...     lagrangian.ascend(dual, {"norm": torch.tensor(1e20)})
        ... except nupi.NonFiniteMultiplierError:
        ...     print(lagrangian)
        Lagrangian(norm: Inequality(1) at 0)
    """

    _what = (
        "a step on the violations of {which}, which are finite, would make the multipliers or their state overflow; "
        "every multiplier and all controller state stay as they were."
    )
    _advice = "Divide the violation by its scale, or lower the gains (with SelfTuned: give more steps)"


def not_finite(moves: Iterable[Move], tensors: Iterable[Iterable[torch.Tensor]]) -> list[str]:
    """The names of the moves of which some tensor is not finite."""
    return [
        move.name
        for move, each in zip(moves, tensors, strict=True)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in each)
    ]


class Refusals:
    """Which constraints a device has refused, until this has been reported: one boolean flag each.

    Flags are set on the device without waiting. `report` starts their copy to the host, and returns the names when it
    has arrived. The flags are a buffer of the Lagrangian, and move with it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._position = {name: i for i, name in enumerate(names)}
        self.silent = True  # whether nothing is left to report
        self._pending = False  # whether a flag may have been set since the last copy to the host
        self._copy: torch.Tensor | None = None
        self._arrival: torch.Event | None = None

    def note(self, flags: torch.Tensor, moves: Sequence[Move], finite: Sequence[torch.Tensor]) -> None:
        """Set the flags of the moves that were not finite, on the device."""
        for move, fine in zip(moves, finite, strict=True):
            flags[self._position[move.name]] |= ~fine
        self._pending, self.silent = True, False

    def report(self, flags: torch.Tensor, *, wait: bool) -> list[str]:
        """The names of refused constraints, as far as known now, or with `wait` all; clears their flags."""
        if self.silent:
            return []
        if self._copy is None or wait:
            self._pending = False
            self._copy = flags.to("cpu", non_blocking=True, copy=True)
            if flags.device.type != "cpu":
                self._arrival = torch.Event(flags.device)
                self._arrival.record()
        if not self._arrived(wait=wait):
            return []
        refused, self._copy, self._arrival = self._copy, None, None
        self.silent = not self._pending
        names = [name for name, bad in zip(self._position, refused.tolist(), strict=True) if bad]
        if names:
            # Clear only the reported flags: others may have been set during the copy.
            flags &= ~refused.to(flags.device)
        return names

    def _arrived(self, *, wait: bool) -> bool:
        if self._arrival is None:
            return True
        if wait:
            self._arrival.synchronize()
            return True
        return self._arrival.query()

    def __deepcopy__(self, memo: dict[int, object]) -> Refusals:
        """A copy starts without a copy to the host under way, because an event of a stream cannot be copied."""
        return self._fresh(list(self._position), not self.silent)

    def __reduce__(self) -> tuple[object, ...]:
        return Refusals._fresh, (list(self._position), not self.silent)

    @staticmethod
    def _fresh(names: list[str], pending: bool) -> Refusals:  # noqa: FBT001
        copied = Refusals(names)
        copied._pending, copied.silent = pending, not pending
        return copied
