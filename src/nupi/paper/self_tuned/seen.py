"""Two tasks that were kept back from a first version of the rule, and that this one was developed on."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nupi import Equality, Inequality
from nupi.paper.self_tuned.task import Task


def autoencoder(seed: int, *, nats: float = 10.0, steps: int = 2_000, batch: int = 64) -> Task:
    """A variational autoencoder of scikit-learn's digits whose rate (the KL term) is to be `nats`, under Adam."""
    images = torch.from_numpy(load_digits().data).float() / 16
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16))
        decoder = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64))
    parameters = [*encoder.parameters(), *decoder.parameters()]

    def terms(some: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = encoder(some).chunk(2, dim=1)
        rate = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        decoded = decoder(mean + (log_variance / 2).exp() * noise)
        return binary_cross_entropy_with_logits(decoded, some, reduction="sum") / len(some), rate

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        some = images[torch.randint(len(images), (batch,), generator=rng)]
        loss, rate = terms(some, torch.randn(batch, 8, generator=rng))
        return loss, {"rate": rate - nats}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            loss, rate = terms(images, torch.randn(len(images), 8, generator=rng))
        return {"violation": abs(float(rate) - nats) / nats, "loss": float(loss)}

    primal = torch.optim.Adam(parameters, lr=1e-3)
    return Task(f"autoencoder, seed {seed}", parameters, primal, {"rate": Equality()}, evaluate, steps, judge)


def wine(seed: int, *, steps: int = 1_500, batch: int = 32) -> Task:
    """Three wines told apart by a linear model of least weight; each kind's loss must be below 0.1. RMSprop."""
    features, kinds = load_wine(return_X_y=True)
    rows, labels = torch.from_numpy(features).float(), torch.from_numpy(kinds)
    rows = (rows - rows.mean(0)) / rows.std(0)
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(13, 3)

    def by_kind(some: torch.Tensor) -> torch.Tensor:
        losses = cross_entropy(model(rows[some]), labels[some], reduction="none")
        sums = torch.zeros(3).index_add(0, labels[some], losses)
        counts = torch.zeros(3).index_add(0, labels[some], torch.ones_like(losses))
        return sums / counts.clamp(min=1.0) - 0.1

    def weight() -> torch.Tensor:
        return model.weight.square().sum() / 2

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        some = torch.randint(len(rows), (batch,), generator=rng)
        return weight(), {"kinds": by_kind(some)}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            return {
                "violation": float(by_kind(torch.arange(len(rows))).clamp(min=0).max()) / 0.1,
                "loss": float(weight()),
            }

    parameters = list(model.parameters())
    primal = torch.optim.RMSprop(parameters, lr=1e-3)
    return Task(
        f"wine, seed {seed}", list(parameters), primal, {"kinds": Inequality(3)}, evaluate, steps, judge
    )
