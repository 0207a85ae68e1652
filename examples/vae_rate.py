"""A variational autoencoder whose rate is held at a target: you choose how many nats a code carries, not beta.

The loss of a beta-VAE is distortion + beta * rate, and the same beta gives another rate on other data. Here you give
the rate, and `nupi.Coefficient` finds beta.

    python examples/vae_rate.py
"""

from __future__ import annotations

import torch
from torch import nn

import nupi

PIXELS, CODE, TARGET = 16, 4, 3.0  # the target is in nats per row


def data(rows: int = 2_000) -> torch.Tensor:
    """Rows near a curved surface with two coordinates."""
    rng = torch.Generator().manual_seed(0)
    place = torch.randn(rows, 2, generator=rng)
    mixing = torch.randn(4, PIXELS, generator=rng) / 2
    curved = torch.cat([place, place.square() - 1], dim=1)
    return curved @ mixing + 0.1 * torch.randn(rows, PIXELS, generator=rng)


def train(steps: int = 800) -> list[tuple[float, float, float]]:
    """Distortion, rate and coefficient at each step."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(PIXELS, 32), nn.Tanh(), nn.Linear(32, 2 * CODE))
    decoder = nn.Sequential(nn.Linear(CODE, 32), nn.Tanh(), nn.Linear(32, PIXELS))
    primal = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=6e-3)
    coefficient = nupi.Coefficient(at=TARGET, steps=steps / 4)
    rows, record = data(), []
    for _ in range(steps):
        x = rows[torch.randint(len(rows), (128,))]
        mean, log_deviation = encoder(x).chunk(2, dim=1)
        code = mean + log_deviation.exp() * torch.randn_like(mean)
        distortion = (decoder(code) - x).square().sum(1).mean()
        # KL(N(mean, deviation^2) || N(0, 1)), summed over the code
        rate = (0.5 * (mean.square() + (2 * log_deviation).exp() - 1) - log_deviation).sum(1).mean()
        beta = coefficient.update(rate)
        (distortion + beta * rate).backward()
        primal.step()
        primal.zero_grad()
        record.append((distortion.item(), rate.item(), beta.item()))
    return record


def main() -> None:
    """Train, and print the rate."""
    record = train()
    for step in range(99, len(record), 100):
        distortion, rate, beta = record[step]
        print(
            f"step {step + 1:4d}   distortion {distortion:6.3f}   rate {rate:5.2f} (target {TARGET})   beta {beta:+.3f}"
        )


if __name__ == "__main__":
    main()
