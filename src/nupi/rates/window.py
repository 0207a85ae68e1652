"""The hard measure over the last batches, if measuring all rows is too slow."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from nupi.optim.checks import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.rates.records import Record


class Window:
    """The last `batches` batches of one constraint, as exact counts.

    The rate is (sum of counts over these batches) / (sum of rows over these batches).

    A batch has few rows of a small group. A rate over a window is that of all its rows together: counts are added,
    rates are not averaged. The model moves meanwhile, so take a window that is much shorter than training.

    Args:
        batches: the number of batches in the window.

    Example:
        >>> from nupi import rates
        >>> constraint, window = rates.positive_rate() <= 0.5, Window(100)
        >>> for logits in torch.tensor([[1.0, 2.0, -3.0], [1.0, -1.0, -1.0]]):
        ...     measured = constraint(logits, window=window)
        >>> measured.hard.sums / measured.hard.counts  # 3 of 6 are positive
        tensor([0.], dtype=torch.float64)
    """

    def __init__(self, batches: int) -> None:
        self.batches = whole("batches", batches)
        self._kinds: tuple[Record, ...] | None = None
        self._held: deque[tuple[torch.Tensor, ...]] = deque(maxlen=self.batches)

    def add(self, records: dict[Record, torch.Tensor]) -> dict[Record, torch.Tensor]:
        """Add the records of a batch, and return those of all batches in the window, this one included.

        A record that is not finite is returned, so that it is refused, but not kept: it does not affect later batches.
        """
        kinds = tuple(records)
        if self._kinds is not None and kinds != self._kinds:
            raise ValueError(
                "this window holds the batches of another constraint; give each constraint its own"
            )
        now = tuple(records.values())
        if self._held and any(_shape(a) != _shape(b) for a, b in zip(now, self._held[-1], strict=True)):
            raise ValueError("this window holds batches of another constraint; give each constraint its own")
        before = list(self._held)[-(self.batches - 1) :] if self.batches > 1 else []
        self._kinds = kinds
        self._held.append(tuple(torch.where(part.isfinite().all(), part, 0.0) for part in now))
        return {
            kind: kind.join([*(held[i].to(part.device) for held in before), part])
            for i, (kind, part) in enumerate(zip(kinds, now, strict=True))
        }

    def clear(self) -> None:
        """Forget all batches, for example after a large change of the model."""
        self._held.clear()
        self._kinds = None

    def __len__(self) -> int:
        return len(self._held)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Window({self.batches}, holding {len(self)})"

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with which a resumed run continues as if it had not stopped."""
        return {"batches": self.batches, "held": [list(parts) for parts in self._held]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; a window of another length is refused."""
        if not {"batches", "held"} <= set(state):
            raise ValueError(
                f"state must have 'batches' and 'held', but it has {', '.join(map(repr, state))}"
            )
        if state["batches"] != self.batches:
            raise ValueError(f"state is of a window of {state['batches']} batches, not {self.batches}")
        self._held = deque((tuple(parts) for parts in state["held"]), maxlen=self.batches)
        self._kinds = None


def _shape(part: torch.Tensor) -> tuple[int, ...]:
    """The shape that must be the same for every batch: for rows, without their number."""
    return tuple(part.shape) if part.dim() > 2 else tuple(part.shape[1:])
