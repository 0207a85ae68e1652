"""Many fairness runs at once: which to train, and what their curves say over the seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from nupi.paper import jobs
from nupi.paper.fairness.training import VERSION, Measure, train

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.paper.runner import TargetRun

TUNED = ("horizon", "on_all_rows")  # what only SelfTuned takes
FINAL_SHARE = 0.05  # "final" is the mean over the last 5% of the epochs: a single one is too noisy to quote


@dataclass(frozen=True)
class Player:
    """The dual player of a run; ki = None trains without constraints, kp = 0 is gradient ascent.

    With a `horizon` it is `SelfTuned`, which is to meet the constraints within so many epochs. It measures on batches,
    or `on_all_rows`.
    """

    ki: float | None = 0.03
    kp: float = 0.0
    nu: float = 0.0
    measure: Measure = "soft"
    divided: bool = False
    horizon: float | None = None
    on_all_rows: bool = False

    def settings(self) -> dict[str, Any]:
        """As the keyword arguments of a job; without what only `SelfTuned` has, as jobs were named before it."""
        given = asdict(self)
        return given if self.horizon is not None else {k: v for k, v in given.items() if k not in TUNED}


@dataclass(frozen=True)
class Curves:
    """The runs of one dual player, stacked over the seeds."""

    accuracy: torch.Tensor  # (seeds, epochs + 1)
    gaps: torch.Tensor  # (seeds, epochs + 1, groups)
    hard_gaps: torch.Tensor  # (seeds, epochs + 1, groups)
    multipliers: torch.Tensor  # (seeds, epochs + 1, groups)
    test_epoch: torch.Tensor  # (tests,)
    test_accuracy: torch.Tensor  # (seeds, tests)
    train_positive: torch.Tensor  # (seeds, training rows)
    test_positive: torch.Tensor  # (seeds, test rows)
    seconds: torch.Tensor  # (seeds,)

    @classmethod
    def stack(cls, values: list[dict[str, Any]]) -> Curves:
        """From what `train` gave for each seed."""

        def all_of(name: str) -> torch.Tensor:
            return torch.stack([torch.as_tensor(value[name]) for value in values])

        return cls(
            accuracy=all_of("accuracy").float(),
            gaps=all_of("gaps"),
            hard_gaps=all_of("hard_gaps"),
            multipliers=all_of("multipliers"),
            test_epoch=all_of("test_epoch")[0],
            test_accuracy=all_of("test_accuracy").float(),
            train_positive=all_of("train_positive"),
            test_positive=all_of("test_positive"),
            seconds=all_of("seconds"),
        )

    @property
    def epochs(self) -> int:
        """How long each run was."""
        return self.accuracy.shape[1] - 1

    @property
    def violation(self) -> torch.Tensor:
        """The largest soft gap of any group, per seed and epoch."""
        return self.gaps.abs().amax(2)

    @property
    def hard_violation(self) -> torch.Tensor:
        """The largest hard gap of any group, per seed and epoch."""
        return self.hard_gaps.abs().amax(2)

    def last(self, curve: torch.Tensor) -> torch.Tensor:
        """The last epochs of a curve."""
        return curve[:, -max(1, round(FINAL_SHARE * self.epochs)) :]

    def final(self, curve: torch.Tensor) -> torch.Tensor:
        """The mean of a curve over the last epochs, per seed."""
        return self.last(curve).mean(1)

    def noise(self) -> torch.Tensor:
        """How far a multiplier moves in an epoch of the second half of the run: root mean square, by seed."""
        steps = self.multipliers[:, self.epochs // 2 : -1].diff(dim=1)  # the last row is not moved any more
        return steps.square().mean((1, 2)).sqrt()

    def settled(self, group: int, tolerance: float = 0.2) -> torch.Tensor:
        """The epoch from which a multiplier stays within a share of its final value, per seed."""
        curve = self.multipliers[:, :, group]
        final = self.final(curve).unsqueeze(1)
        outside = (curve - final).abs() > tolerance * final.abs()
        epochs = torch.arange(curve.shape[1])
        return torch.where(outside, epochs + 1, 0).amax(1)

    def first_below(self, level: float) -> torch.Tensor:
        """The first epoch whose violation is below `level`, per seed; one past the last if there is none."""
        below = self.violation < level
        below = torch.cat([below[:, 1:], torch.ones_like(below[:, :1])], dim=1)  # the untrained model is fair
        return below.int().argmax(1) + 1


def train_all(run: TargetRun, players: Mapping[str, Player], epochs: int, seeds: int) -> dict[str, Curves]:
    """Train every player with every seed over the cores, or read what was trained before."""
    wanted = [
        {"seed": seed, "epochs": epochs, **player.settings()}
        for seed in range(seeds)
        for player in dict.fromkeys(players.values())
    ]
    outcomes = jobs.run(train, wanted, run.jobs, version=VERSION)
    found = jobs.values(run.progress(outcomes, f"training {len(wanted)} classifiers", total=len(wanted)))
    by_player: dict[Player, dict[int, dict[str, Any]]] = {}
    for settings, value in found:
        player = Player(
            **{each.name: settings[each.name] for each in fields(Player) if each.name in settings}
        )
        by_player.setdefault(player, {})[settings["seed"]] = value
    return {
        name: Curves.stack([by_player[player][seed] for seed in range(seeds)])
        for name, player in players.items()
    }
