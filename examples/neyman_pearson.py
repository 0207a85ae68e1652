"""Neyman-Pearson classification: the largest recall with a false positive rate of at most 5%.

The loss uses only the positive rows. The constraint uses the decisions on the negative rows: false positive rate
<= 0.05, with 95% confidence, on rows that the model does not train on. So it also holds on new rows. For two Gaussians
the best possible detector is known, and the model comes close to it.

    python examples/neyman_pearson.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import softplus

import nupi
from nupi import rates

LEVEL, FEATURES = 0.05, 8
SHIFT = torch.linspace(0.2, 1.2, FEATURES)  # from the mean of the negatives to that of the positives
ALARMS = (rates.false_positive_rate() <= LEVEL).surrogate("sigmoid", temperature=0.5)
ON_NEW_ROWS = ALARMS.confident(0.95, method="wilson")


def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As many positive rows as negative ones."""
    rng = torch.Generator().manual_seed(seed)
    labels = (torch.arange(rows) % 2).float()
    return torch.randn(rows, FEATURES, generator=rng) + labels.unsqueeze(1) * SHIFT, labels


def best_power() -> float:
    """The recall of the likelihood ratio test at this level: Phi(|shift| - z), with z the quantile of 1 - level."""
    normal = torch.distributions.Normal(0.0, 1.0)
    quantile = normal.icdf(torch.tensor(1 - LEVEL))
    return float(normal.cdf(SHIFT.norm() - quantile))


def train(rows: int = 20_000, steps: int = 300) -> nn.Module:
    """Minimize the loss of the positives, subject to the bound on the negatives."""
    (x, labels), (held_x, held_labels) = draw(rows, seed=0), draw(rows, seed=1)
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 1)
    primal = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, steps)
    lagrangian = nupi.Lagrangian({"alarms": ALARMS.kind()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=5.0)
    best = nupi.Best(lagrangian, higher_is_better=True)
    for _ in range(steps):
        with torch.no_grad():
            held_out = (model(held_x).squeeze(1), held_labels)
        violation = {"alarms": ON_NEW_ROWS.hard(*held_out)}
        best.see(model, rates.recall().measure([held_out]).item(), violation)
        lagrangian.ascend(dual, violation)
        logits = model(x).squeeze(1)
        loss = softplus(-logits[labels == 1]).mean()
        lagrangian(loss, {"alarms": ALARMS.soft(logits, labels)}).backward()
        primal.step()
        primal.zero_grad()
        schedule.step()
    best.restore(model)
    return model


@torch.no_grad()
def judge(model: nn.Module) -> tuple[float, float]:
    """Recall and false positive rate on 100,000 new rows."""
    x, labels = draw(100_000, seed=2)
    rows = [(model(x).squeeze(1), labels)]
    return rates.recall().measure(rows).item(), rates.false_positive_rate().measure(rows).item()


def main() -> None:
    """Train, and test on new rows."""
    recall, alarms = judge(train())
    print(f"on new rows: false positive rate {alarms:.2%} (asked: {LEVEL:.0%}), recall {recall:.1%}")
    print(f"the best possible recall at this level is {best_power():.1%}")


if __name__ == "__main__":
    main()
