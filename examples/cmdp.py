"""A constrained Markov decision process: short queues, with the fast, expensive server used at most 30% of the time.

Actions are sampled, so neither the return nor the cost has a gradient. The score function gives one: let G_t be the
sum from step t on. Then the gradient of the mean of

    sum_t log pi(a_t | s_t) * (G_t - baseline)

is that of the expected sum. This surrogate moves the policy; the cost itself moves the multiplier. `nupi.Measured` has
both.

    python examples/cmdp.py
"""

from __future__ import annotations

import torch

import nupi

QUEUE, HORIZON, EPISODES = 6, 25, 256
ARRIVES, SERVES = 0.45, torch.tensor([0.35, 0.8])  # probabilities; the server is slow or fast
LIMIT = 0.3  # the largest share of steps with the fast server


def roll(policy: torch.Tensor, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, lengths of the queue and uses of the fast server: each (steps, episodes)."""
    queue = torch.zeros(EPISODES, dtype=torch.long)
    told = []
    for _ in range(HORIZON):
        decision = torch.log_softmax(policy[queue], dim=1)
        action = torch.multinomial(decision.detach().exp(), 1, generator=rng).squeeze(1)
        arrived = torch.rand(EPISODES, generator=rng) < ARRIVES
        served = (torch.rand(EPISODES, generator=rng) < SERVES[action]) & (queue > 0)
        told.append((decision.gather(1, action.unsqueeze(1)).squeeze(1), queue.float(), action.float()))
        queue = (queue + arrived.long() - served.long()).clamp(max=QUEUE - 1)
    chances, lengths, fast = (torch.stack(each) for each in zip(*told, strict=True))
    return chances, lengths, fast


def surrogate(chances: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
    """A scalar whose gradient is that of the expected mean of `amounts` (steps, episodes) over the steps."""
    to_come = amounts.flip(0).cumsum(0).flip(0)
    return (chances * (to_come - to_come.mean(1, keepdim=True))).sum(0).mean() / len(amounts)


def train(steps: int = 200) -> torch.Tensor:
    """The logits of a policy: a row for each length of the queue, a column for each server."""
    rng = torch.Generator().manual_seed(0)
    policy = torch.zeros(QUEUE, 2, requires_grad=True)
    primal = torch.optim.Adam([policy], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, steps)
    lagrangian = nupi.Lagrangian({"cost": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.3, kp=3.0, nu=0.8)
    for _ in range(steps):
        chances, lengths, fast = roll(policy, rng)
        over = fast.mean() - LIMIT
        cost = nupi.Measured(soft=surrogate(chances, fast), hard=over)
        lagrangian.ascend(dual, {"cost": cost})
        lagrangian(surrogate(chances, lengths), {"cost": cost}).backward()
        primal.step()
        primal.zero_grad()
        schedule.step()
    return policy.detach()


def main() -> None:
    """Train, and print what the policy does."""
    policy = train()
    _, lengths, fast = roll(policy, torch.Generator().manual_seed(1))
    print(
        f"mean queue {lengths.mean():.2f}, fast server used {fast.mean():.1%} of the time (limit {LIMIT:.0%})"
    )
    print(
        "probability of the fast server, by length of the queue:",
        policy.softmax(1)[:, 1].round(decimals=2).tolist(),
    )


if __name__ == "__main__":
    main()
