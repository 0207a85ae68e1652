"""Choose the constraints of a large group to record one by one: the worst so far. All work is on the device."""

from __future__ import annotations

import torch

from nupi.monitor.columns import WATCHED

_STICKY = 2.0  # a recorded constraint is replaced only by one that is worse by this factor
_FORGET = 0.9  # each block multiplies the score of a recorded constraint by this, until a step has it again


class Worst:
    """The indices of the worst constraints of one group, updated once per block of steps.

    The score of a constraint is its violation; if its multiplier is not 0, the absolute value of the violation.
    """

    def __init__(self, device: torch.device) -> None:
        self.indices = torch.full((WATCHED,), -1, dtype=torch.int64, device=device)
        self.scores = torch.full((WATCHED,), -torch.inf, dtype=torch.float32, device=device)

    def see_whole(self, errors: torch.Tensor, multipliers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Update the choice, and return the columns of these steps: violations, multipliers, indices."""
        # The multipliers of the last step are enough to choose, and save two passes over all of them.
        low = torch.where(multipliers[-1] != 0, -errors.amin(0), -torch.inf)
        scores = torch.maximum(errors.amax(0), low).float()
        known = self.indices >= 0
        held = scores.index_select(0, self.indices.clamp(min=0))
        self.scores = torch.where(known, held, -torch.inf)
        self._renew(torch.arange(len(scores), device=scores.device), scores)
        at = self.indices.expand(len(errors), -1)
        # `index_select` would first copy the whole part of the matrix.
        followed = (errors.gather(1, at), multipliers.gather(1, at), at)
        return torch.cat([column.to(dtype) for column in followed], dim=1)

    def see_parts(
        self,
        errors: torch.Tensor,
        multipliers: torch.Tensor,
        element: torch.Tensor,
        step: torch.Tensor,
        steps: int,
    ) -> torch.Tensor:
        """As `see_whole`, for steps that had only some constraints; nan for a chosen one that a step did not have."""
        scores = torch.where(multipliers != 0, errors.abs(), errors).float()
        match = element[None, :] == self.indices[:, None]
        now = torch.where(match, scores, -torch.inf).amax(1)
        self.scores = torch.maximum(torch.where(self.scores > 0, self.scores * _FORGET, self.scores), now)
        self._renew(element, scores)
        match = element[None, :] == self.indices[:, None]
        row = torch.where(match, step, steps)  # values without a match go to an extra row, which is dropped

        def seen(values: torch.Tensor) -> torch.Tensor:
            out = values.new_full((WATCHED, steps + 1), torch.nan)
            return out.scatter_(1, row, values.expand(WATCHED, -1))[:, :steps].T

        which = self.indices.to(errors.dtype).expand(steps, -1)
        return torch.cat([seen(errors), seen(multipliers), which], dim=1)

    def _renew(self, element: torch.Tensor, scores: torch.Tensor) -> None:
        """Replace the least bad of the chosen constraints by worse ones that are not yet chosen."""
        fresh = torch.where(torch.isin(element, self.indices), -torch.inf, scores)
        # A constraint that occurs in several steps of the block must be chosen only once.
        score, order = fresh.topk(min(len(fresh), 8 * WATCHED))
        found = element.index_select(0, order)
        again = (found[:, None] == found[None, :]).tril(-1).any(1)
        score = torch.where(again, -torch.inf, score)
        known = torch.where(self.indices >= 0, self.scores.abs() * (_STICKY - 1) + self.scores, -torch.inf)
        best, kept = torch.cat([known, score]).topk(WATCHED)
        indices = torch.cat([self.indices, found]).index_select(0, kept)
        self.indices = torch.where(best > -torch.inf, indices, -1)
        self.scores = torch.cat([self.scores, score]).index_select(0, kept)
