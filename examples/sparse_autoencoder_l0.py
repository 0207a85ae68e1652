"""A sparse autoencoder with a given number of active features, instead of an L1 penalty to tune.

The target is on L0, the number of active features of a row. L0 has no gradient, so the loss has L1, as usual. The
coefficient of L1 moves by L0: the measured quantity may differ from the penalized one.

    python examples/sparse_autoencoder_l0.py
"""

from __future__ import annotations

import torch
from torch import nn

import nupi

INPUTS, FEATURES, TARGET = 24, 64, 6.0  # the target is in active features per row


def data(rows: int = 4_000) -> torch.Tensor:
    """Sums of a few of 48 directions."""
    rng = torch.Generator().manual_seed(0)
    directions = nn.functional.normalize(torch.randn(48, INPUTS, generator=rng), dim=1)
    amounts = torch.rand(rows, 48, generator=rng) * (torch.rand(rows, 48, generator=rng) < 0.08)
    return amounts @ directions


def train(steps: int = 800) -> list[tuple[float, float, float]]:
    """Squared error, L0 and coefficient at each step."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(INPUTS, FEATURES), nn.Linear(FEATURES, INPUTS)
    primal = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    coefficient = nupi.Coefficient(at_most=TARGET, steps=steps / 4)
    rows, record = data(), []
    for _ in range(steps):
        x = rows[torch.randint(len(rows), (256,))]
        active = encoder(x).relu()
        # L1 is weighted by the norms of the directions. Otherwise features could shrink while directions grow.
        l1 = (active * decoder.weight.norm(dim=0)).sum(1).mean()
        l0 = (active > 0).float().sum(1).mean()
        error = (decoder(active) - x).square().sum(1).mean()
        beta = coefficient.update(l0)
        (error + beta * l1).backward()
        primal.step()
        primal.zero_grad()
        record.append((error.item(), l0.item(), beta.item()))
    return record


def main() -> None:
    """Train, and print L0."""
    record = train()
    for step in range(99, len(record), 100):
        error, l0, beta = record[step]
        print(
            f"step {step + 1:4d}   squared error {error:.4f}   L0 {l0:5.2f} (target {TARGET})   beta {beta:.4f}"
        )


if __name__ == "__main__":
    main()
