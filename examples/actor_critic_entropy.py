"""A soft actor-critic whose entropy is held at its target by `nupi.Coefficient`.

The usual code has a second loss and a second optimizer for log alpha. Here it is one line: the metric is the mean of
log pi, which should be at most minus the target entropy, and its coefficient is alpha.

The task: push a cart at position x to 0. State (x, velocity), action in [-1, 1], reward -x^2 - 0.1 a^2.

    python examples/actor_critic_entropy.py
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.functional import softplus

import nupi

TARGET = -0.5  # the entropy of the squashed action, in nats
CARTS, KEPT, BATCH, DISCOUNT = 32, 8_192, 128, 0.9


def network(inputs: int, outputs: int) -> nn.Sequential:
    """A small MLP."""
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs)
    )


def act(actor: nn.Module, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An action in (-1, 1) for each state, and its log-density."""
    mean, spread = actor(state).chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
    raw = normal.rsample()
    # log(1 - tanh(raw)^2), written so that it does not underflow
    squashed = 2 * (math.log(2) - raw - softplus(-2 * raw))
    return raw.tanh(), (normal.log_prob(raw) - squashed).sum(1)


def move(state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reward and the next state of each cart; one in 20 starts again at a random place."""
    x, velocity = state.unbind(1)
    reward = -x.square() - 0.1 * action.squeeze(1).square()
    velocity = 0.8 * velocity + 0.3 * action.squeeze(1)
    after = torch.stack([(x + velocity).clamp(-2, 2), velocity], dim=1)
    fresh = torch.stack([torch.rand(len(x)) * 4 - 2, torch.zeros(len(x))], dim=1)
    return reward, torch.where(torch.rand(len(x), 1) < 0.05, fresh, after)


def train(updates: int = 400) -> list[tuple[float, float, float]]:
    """Mean reward, entropy and alpha at each update."""
    torch.manual_seed(0)
    actor, critics = network(2, 2), nn.ModuleList([network(3, 1), network(3, 1)])
    targets = copy.deepcopy(critics)
    actor_primal = torch.optim.Adam(actor.parameters(), lr=3e-3)
    critic_primal = torch.optim.Adam(critics.parameters(), lr=3e-3)
    coefficient = nupi.Coefficient(at_most=-TARGET, steps=updates / 4)

    def lowest(models: nn.ModuleList, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        values = [model(torch.cat([state, action], dim=1)).squeeze(1) for model in models]
        return torch.minimum(*values)

    state = torch.stack([torch.rand(CARTS) * 4 - 2, torch.zeros(CARTS)], dim=1)
    memory: list[torch.Tensor] = []
    alpha, record = torch.zeros(()), []
    for _ in range(updates):
        with torch.no_grad():
            action, _ = act(actor, state)
            reward, after = move(state, action)
        memory = [*memory, torch.cat([state, action, reward.unsqueeze(1), after], dim=1)][-KEPT // CARTS :]
        state = after

        rows = torch.cat(memory)
        s, a, r, then = rows[torch.randint(len(rows), (BATCH,))].split([2, 1, 1, 2], dim=1)
        with torch.no_grad():
            action, chance = act(actor, then)
            goal = r.squeeze(1) + DISCOUNT * (lowest(targets, then, action) - alpha * chance)
        errors = [model(torch.cat([s, a], dim=1)).squeeze(1) - goal for model in critics]
        torch.stack(errors).square().mean().backward()
        critic_primal.step()
        critic_primal.zero_grad()

        action, chance = act(actor, s)
        alpha = coefficient.update(chance.mean())
        (alpha * chance - lowest(critics, s, action)).mean().backward()
        actor_primal.step()
        actor_primal.zero_grad()
        critic_primal.zero_grad()  # the actor's loss has given the critics gradients too
        with torch.no_grad():
            for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        record.append((reward.mean().item(), -chance.mean().item(), alpha.item()))
    return record


def main() -> None:
    """Train, and print the entropy."""
    record = train()
    for update in range(49, len(record), 50):
        reward, entropy, alpha = record[update]
        print(
            f"update {update + 1:3d}   reward {reward:6.3f}   entropy {entropy:6.3f} (target {TARGET})   "
            f"alpha {alpha:.4f}"
        )


if __name__ == "__main__":
    main()
