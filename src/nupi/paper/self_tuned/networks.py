"""Networks on mini-batches: the multipliers move at every step, on what the batch shows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from nupi import Equality, Inequality
from nupi.paper.data import adult
from nupi.paper.self_tuned.task import OPTIMIZERS, Task

if TYPE_CHECKING:
    from collections.abc import Callable

RATES = {"adam": 1e-3, "adamw": 3e-3, "momentum": 0.05, "rmsprop": 1e-3, "sgd": 0.1}


@cache
def adult_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """All training rows of Adult and their labels."""
    train = adult.load().train
    return train.features, train.labels


@cache
def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    """A synthetic set: 6,000 rows of 20 features, two classes that overlap, 30% positive."""
    rng = torch.Generator().manual_seed(5)
    labels = (torch.rand(6_000, generator=rng) < 0.3).float()
    shift = torch.randn(20, generator=rng) * 0.35
    rows = torch.randn(6_000, 20, generator=rng) + labels[:, None] * shift
    rows[:, 10:] = rows[:, 10:] * rows[:, :10].sign()
    return rows, labels


def positives(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean prediction."""
    del labels
    return logits.sigmoid().mean()


def recall(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean prediction among the positive rows."""
    return (logits.sigmoid() * labels).sum() / labels.sum().clamp(min=1.0)


Bound = tuple["Callable[[torch.Tensor, torch.Tensor], torch.Tensor]", str, float]
RULES: dict[str, dict[str, Bound]] = {
    "recall 70, rate 25": {"recall": (recall, ">=", 0.70), "rate": (positives, "<=", 0.25)},
    "recall 80, rate 40": {"recall": (recall, ">=", 0.80), "rate": (positives, "<=", 0.40)},
    "rate = 35": {"rate": (positives, "=", 0.35)},
    "rate <= 10": {"rate": (positives, "<=", 0.10)},
    "impossible": {"recall": (recall, ">=", 0.95), "rate": (positives, "<=", 0.05)},
}
"""Bounds by name: what is measured, on which side, and the bound."""


def network(
    data: str,
    rule: str,
    optimizer: str,
    seed: int,
    *,
    steps: int = 1_500,
    batch: int = 256,
    unit: float = 1.0,
) -> Task:
    """A network with one hidden layer of 64, trained under the bounds of a rule."""
    rows, labels = DATA[data]()
    bounds = RULES[rule]
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(rows.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
    parameters = list(model.parameters())

    def violations(logits: torch.Tensor, truth: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {}
        for name, (rate, side, bound) in bounds.items():
            gap = rate(logits, truth) - bound
            found[name] = unit * (-gap if side == ">=" else gap)
        return found

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        some = torch.randint(len(rows), (batch,), generator=rng)
        logits, truth = model(rows[some]).squeeze(1), labels[some]
        return cross_entropy(logits, truth), violations(logits, truth)

    def judge() -> dict[str, float]:
        with torch.no_grad():
            logits = model(rows).squeeze(1)
            left = {name: float(v) / unit for name, v in violations(logits, labels).items()}
            sized = [abs(v) if bounds[name][1] == "=" else max(v, 0.0) for name, v in left.items()]
            return {
                "violation": max(sized),
                "loss": float(cross_entropy(logits, labels)),
                **{f"v:{name}": v for name, v in left.items()},
            }

    constraints = {name: Equality() if side == "=" else Inequality() for name, (_, side, _) in bounds.items()}
    primal = OPTIMIZERS[optimizer](parameters, lr=RATES[optimizer])
    name = f"{data}, {rule}, {optimizer}, seed {seed}"
    return Task(name, list(parameters), primal, dict(constraints), evaluate, steps, judge)


@cache
def low_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 handwritten digits of scikit-learn, 64 pixels each; positive where the digit is 0, 1 or 2."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 8 - 1, torch.from_numpy(digits < 3).float()


DATA = {"adult_rows": adult_rows, "blobs": blobs, "low_digits": low_digits}
"""What networks are trained on, by name."""
