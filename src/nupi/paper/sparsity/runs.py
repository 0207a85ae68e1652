"""Many sparsity runs at once: which to train, and what came of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from nupi.paper import jobs
from nupi.paper.sparsity import training
from nupi.paper.sparsity.methods import Dual
from nupi.paper.sparsity.scales import experiment
from nupi.paper.sparsity.training import VERSION, train, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nupi.paper.runner import TargetRun


@dataclass(frozen=True)
class Wanted:
    """A run to make."""

    dual: Dual
    epsilon: float
    seed: int = 0
    layerwise: bool = False


@dataclass(frozen=True)
class Trained:
    """A run that was made, in percent and points of density."""

    wanted: Wanted
    value: Mapping[str, Any]

    @property
    def train(self) -> float:
        """Final training accuracy."""
        return 100 * float(self.value["train_accuracy"])

    @property
    def test(self) -> float:
        """Final test accuracy."""
        return 100 * float(self.value["test_accuracy"])

    @property
    def violations(self) -> torch.Tensor:
        """Final violation of each constraint; negative inside the feasible set."""
        found = self.value["layer_densities"] if self.wanted.layerwise else self.value["density"].reshape(1)
        violations: torch.Tensor = 100 * (found - self.wanted.epsilon)
        return violations

    @property
    def violation(self) -> float:
        """Final violation of the only constraint, or the largest."""
        return self.violations.max().item()

    @property
    def lowest(self) -> float:
        """Final violation of the only constraint, or the smallest."""
        return self.violations.min().item()

    @property
    def spread(self) -> float:
        """Between the largest and the smallest final violation."""
        return (self.violations.max() - self.violations.min()).item()

    @property
    def realised(self) -> float:
        """Violation of the network at test time, with the median gates."""
        return 100 * (float(self.value["realised_density"]) - self.wanted.epsilon)

    @property
    def path(self) -> torch.Tensor:
        """The violations during the run: (points, constraints)."""
        path: torch.Tensor = 100 * self.value["violations"]
        return path

    @property
    def worst(self) -> float:
        """The deepest that any constraint went into the feasible set."""
        return self.path.min().item()

    @property
    def multiplier(self) -> torch.Tensor:
        """The final multipliers."""
        multiplier: torch.Tensor = self.value["multiplier"]
        return multiplier


def train_all(run: TargetRun, wanted: Iterable[Wanted]) -> list[Trained]:
    """Make every run over the cores, or read what was made before; in the order asked for."""
    every = list(dict.fromkeys(wanted))
    setting = asdict(experiment(run))
    folder = run.jobs
    # An accelerator takes one run at a time; more of them are reached through submitit.
    workers = 1 if torch.accelerator.is_available() else None
    settings = [_settings(each, setting) for each in every]
    if not all(jobs.Job(train, each, folder, VERSION).path.exists() for each in settings):
        # First here: if the data cannot be had, that is said once and not by every job.
        training.data(experiment(run))
    first = [{"seed": seed, "setting": setting} for seed in sorted({each.seed for each in every})]
    made = jobs.run(warm_up, first, folder, version=VERSION, workers=workers)
    jobs.values(run.progress(made, "warming up", total=len(first)))
    outcomes = jobs.run(
        train, settings, folder, version=VERSION, workers=workers, shared={"runs": str(folder)}
    )
    waiting_for = f"training {len(every)} network{'s' * (len(every) > 1)}"
    values = jobs.values(run.progress(outcomes, waiting_for, total=len(every)))
    found = {_asked(settings): value for settings, value in values}
    return [Trained(each, found[each]) for each in every]


def _settings(wanted: Wanted, setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "seed": wanted.seed,
        "epsilon": wanted.epsilon,
        "layerwise": wanted.layerwise,
        "dual": wanted.dual.settings(),
        "setting": setting,
    }


def _asked(settings: Mapping[str, Any]) -> Wanted:
    return Wanted(
        Dual(**settings["dual"]), settings["epsilon"], settings["seed"], layerwise=settings["layerwise"]
    )


def frame(trained: Iterable[Trained]) -> pd.DataFrame:
    """Every run that was made, a row each."""
    return pd.DataFrame(
        {
            "method": each.wanted.dual.label,
            **{f"dual_{name}": value for name, value in each.wanted.dual.settings().items()},
            "epsilon": each.wanted.epsilon,
            "layerwise": each.wanted.layerwise,
            "seed": each.wanted.seed,
            "train_accuracy": each.train,
            "test_accuracy": each.test,
            "violation": each.violation,
            "violation_smallest": each.lowest,
            "violation_range": each.spread,
            "violation_lowest": each.worst,
            "violation_realised": each.realised,
            "multiplier": each.multiplier.max().item(),
            "cpu_seconds": each.value["seconds"],
        }
        for each in trained
    )
