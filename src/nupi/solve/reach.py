"""Find out whether constraints seem infeasible: violated while multipliers grow, with gradients that cannot help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nupi.monitor.shape import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    Pull: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

SAMPLES = 40  # samples of a run, evenly spaced
_FEWEST = 16  # with fewer samples, no run is called infeasible
_MOST = 0.5  # one constraint must always be violated by this share of the largest violation
_SIGNS, _HALF = 8, 0.5


def stride(steps: int) -> int:
    """Steps between two samples."""
    return max(1, steps // SAMPLES)


class Samples:
    """The largest violation and the sum of all multipliers, at some steps of a batch of runs.

    Args:
        width: the number of runs.
        steps: the number of their steps.
        device: the device of the runs.
    """

    def __init__(self, width: int, steps: int, device: torch.device) -> None:
        self._width, self._half = width, steps // stride(steps) // 2
        self._none = torch.zeros(width, dtype=torch.bool, device=device)
        self._violation: list[torch.Tensor] = []
        self._multiplier: list[torch.Tensor] = []
        self._least: torch.Tensor | None = None  # the smallest value of each violation in the second half

    def add(self, violations: torch.Tensor, theta: torch.Tensor, alive: torch.Tensor | None = None) -> None:
        """Add a sample.

        Args:
            violations: by how much each constraint is violated, (constraints, runs).
            theta: the multipliers, (multipliers, runs).
            alive: which runs these are, if not all.
        """
        if alive is not None and len(alive) < self._width:
            violations, theta = (
                values.new_full((len(values), self._width), torch.nan).index_copy_(1, alive, values)
                for values in (violations, theta)
            )
        self._violation.append(violations.amax(0))
        self._multiplier.append(theta.abs().sum(0))
        if len(self._violation) > self._half:
            self._least = violations if self._least is None else torch.minimum(self._least, violations)

    def stay_violated(self) -> torch.Tensor:
        """Which runs have constraints that stay violated although their multipliers keep growing.

        One constraint must be violated all the time: if two are violated in turn, the run oscillates.
        """
        if len(self._violation) < _FEWEST or self._least is None:
            return self._none
        e, theta = torch.stack(self._violation), torch.stack(self._multiplier)
        found = answers(e, theta)
        return found.out_of_reach & (self._least.amax(0) > _MOST * found.violation)


def small_or_opposed(pulls: Sequence[Pull], theta: torch.Tensor) -> torch.Tensor:
    """Which runs have constraints whose gradients have become small, or oppose each other.

    The test: |J' theta|, the gradient of all constraints together, is less than half of what it would be if their
    gradients J_i were as large as at the start and orthogonal, the root of the sum of theta_i^2 |J_i|^2. That sum is
    the mean of |J' (theta s)|^2 over random signs s; a few samples are enough.

    Args:
        pulls: functions from weights of the constraints to J' weights, (parameters, runs): at the end and the start.
        theta: the multipliers, (multipliers, runs).
    """
    random = torch.Generator().manual_seed(0)
    signs = [
        torch.randint(0, 2, theta.shape, generator=random).mul(2).sub(1).to(theta) for _ in range(_SIGNS)
    ]
    apart = [torch.stack([pull(theta * s).square().sum(0) for s in signs]).mean(0) for pull in pulls]
    together = pulls[0](theta).square().sum(0)
    return together < _HALF**2 * torch.stack(apart).amax(0)


def flat(leaves: Iterable[torch.Tensor]) -> torch.Tensor:
    """All leaves of a batch of points as one tensor, (parameters, runs)."""
    return torch.cat([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])
