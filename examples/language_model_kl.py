"""REINFORCE on a tiny language model, with the KL divergence to the reference policy held at a target.

The reward is the share of the token 3 in a text, so without a penalty the model would write nothing else. Usually the
penalty is `beta * kl` with a tuned beta. Here you give the target of the KL, and `nupi.Coefficient` finds beta.

    python examples/language_model_kl.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import nupi

TOKENS, LENGTH, BATCH, WIDTH = 8, 12, 128, 32
TARGET = 2.0  # nats per text


class Writer(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS + 1, WIDTH)  # one more token, for the start
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, token: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the next token, and the new memory."""
        memory = self.cell(self.embedding(token), memory)
        return torch.log_softmax(self.head(memory), dim=1), memory


def write(policy: Writer, reference: Writer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Texts (tokens, batch), their log-probabilities and their KL to the reference, summed over the tokens."""
    token = torch.full((BATCH,), TOKENS)
    memory = usual = torch.zeros(BATCH, WIDTH)
    texts, chances, kl = [], torch.zeros(BATCH), torch.zeros(BATCH)
    for _ in range(LENGTH):
        here, memory = policy(token, memory)
        with torch.no_grad():
            there, usual = reference(token, usual)
        token = torch.multinomial(here.detach().exp(), 1).squeeze(1)
        chances = chances + here.gather(1, token.unsqueeze(1)).squeeze(1)
        kl = kl + (here.exp() * (here - there)).sum(1)
        texts.append(token)
    return torch.stack(texts), chances, kl


def train(updates: int = 300) -> list[tuple[float, float, float]]:
    """Reward, KL and coefficient at each update."""
    torch.manual_seed(0)
    policy = Writer()
    reference = copy.deepcopy(policy)
    primal = torch.optim.Adam(policy.parameters(), lr=3e-3)
    coefficient = nupi.Coefficient(at=TARGET, steps=updates / 4)
    record = []
    for _ in range(updates):
        texts, chances, kl = write(policy, reference)
        reward = (texts == 3).float().mean(0)
        beta = coefficient.update(kl.mean())
        advantage = (reward - reward.mean()) / reward.std().clamp(min=1e-3)
        loss = -(advantage * chances).mean() + beta * kl.mean()
        loss.backward()
        primal.step()
        primal.zero_grad()
        record.append((reward.mean().item(), kl.mean().item(), beta.item()))
    return record


def main() -> None:
    """Train, and print reward and KL."""
    record = train()
    for update in range(49, len(record), 50):
        reward, kl, beta = record[update]
        print(
            f"update {update + 1:3d}   reward {reward:.3f}   KL {kl:5.2f} (target {TARGET})   beta {beta:+.3f}"
        )


if __name__ == "__main__":
    main()
