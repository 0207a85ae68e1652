"""The numbers that a front end logs for each step: violations, multipliers and gains, named as in `nupi.Monitor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.monitor.gains import FIELDS, GainReader

if TYPE_CHECKING:
    from nupi.ascent.listening import Ascent
    from nupi.lagrangian import Lagrangian
    from nupi.violations import Move


class Numbers:
    """Listens to a Lagrangian, and averages the numbers of its steps until `taken` is called.

    Everything stays on the device until then.
    """

    def __init__(self, lagrangian: Lagrangian) -> None:
        self._lagrangian = lagrangian
        self._gains = GainReader(dict(lagrangian.named_parameters()))
        self._known: dict[str, float | torch.Tensor] = {}
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}
        self._dual: torch.optim.Optimizer | None = None
        self._steps = 0
        lagrangian.listen(self)

    def __call__(self, step: Ascent) -> None:
        """Add a step; the Lagrangian calls this after every `ascend`."""
        self._steps += 1
        self._dual = step.dual
        self._gains.look(self._steps, step.dual)
        for move in step.moves:
            error = self._errors(move)
            self.note(f"nupi/{move.name}/violation", error.mean())
            if self._lagrangian.constraints[move.name].shape.numel() > 1:
                self.note(f"nupi/{move.name}/violation_max", error.max())

    def note(self, name: str, value: torch.Tensor) -> None:
        """Add a number to the average that is logged under this name."""
        self._sums[name] = self._sums[name] + value.detach() if name in self._sums else value.detach()
        self._counts[name] = self._counts.get(name, 0) + 1

    def taken(self) -> dict[str, float]:
        """Means of violations since the last call; multipliers and gains as they are now."""
        found: dict[str, float | torch.Tensor] = {
            name: total / self._counts[name] for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, {}
        for name, multiplier in self._lagrangian.multipliers.items():
            found[f"nupi/{name}/multiplier"] = multiplier.mean()
        if self._dual is not None:
            self._gains.ask(self._steps, self._dual)
        for change in self._gains.taken():
            gains = {gain: value for gain, value in change.gains.items() if gain in FIELDS}
            for name in change.names:
                self._known |= {f"nupi/{name}/{gain}": value for gain, value in gains.items()}
        found |= self._known
        return _floats(found)

    def _errors(self, move: Move) -> torch.Tensor:
        """The errors of a step; for a band, the distance of the violation beyond it."""
        constraint = self._lagrangian.constraints[move.name]
        two_sided = constraint.multiplier_shape != constraint.shape
        return move.error.amax(-1) if two_sided else move.error


def _floats(found: dict[str, float | torch.Tensor]) -> dict[str, float]:
    """Copy all numbers to the host at once."""
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    if tensors:
        values = torch.stack([value.detach().float().mean() for value in tensors.values()]).tolist()
        found = found | dict(zip(tensors, values, strict=True))
    return {name: float(value) for name, value in found.items()}
