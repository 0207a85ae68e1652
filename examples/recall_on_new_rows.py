"""Few false alarms, and a recall of at least 90% that also holds on new rows.

One row in ten is positive. The model trains on one data set. The multiplier uses another: the lower 95% confidence
limit of the recall of decisions. So the bound is about new rows, and a third set tests it.

    python examples/recall_on_new_rows.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import nupi
from nupi import rates

FEATURES = 10
# Unlike a sigmoid, a hinge keeps its gradient on rows with logits far from 0.
RECALL = (rates.recall() >= 0.9).surrogate("hinge")
ON_NEW_ROWS = RECALL.confident(0.95)  # the same, with a binomial margin for the number of rows


def draw(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which one in ten is positive, and positives that overlap with the others."""
    labels = (torch.rand(count, generator=rng) < 0.1).float()
    features = torch.randn(count, FEATURES, generator=rng)
    return features + labels.unsqueeze(1) * torch.linspace(0, 1.2, FEATURES), labels


def main() -> None:
    """Train, choose the model to ship, and try it on new rows."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    (x, y), (held_x, held_y), (new_x, new_y) = (draw(count, rng) for count in (4_000, 4_000, 100_000))
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    primal = torch.optim.Adam(model.parameters(), lr=3e-3)

    lagrangian = nupi.Lagrangian({"recall": RECALL.kind()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=5.0, kp=5.0, init="bumpless")
    best = nupi.Best(lagrangian)
    alarms = rates.false_positive_rate()

    for _ in range(100):
        with torch.no_grad():
            held_out = [(model(held_x).squeeze(1), held_y)]
        violations = {"recall": ON_NEW_ROWS.measure(held_out)}  # hard, on rows the model does not train on
        best.see(model, alarms.measure(held_out).item(), violations)
        lagrangian.ascend(dual, violations)
        for batch in torch.randperm(len(x), generator=rng).split(500):
            logits = model(x[batch]).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, y[batch])
            lagrangian(loss, {"recall": RECALL.soft(logits, y[batch])}).backward()  # soft, with a gradient
            primal.step()
            primal.zero_grad()

    best.restore(model)
    with torch.no_grad():
        new = [(model(new_x).squeeze(1), new_y)]
    print(best)
    recall, false_alarms = rates.recall().measure(new).item(), alarms.measure(new).item()
    print(f"on {len(new_y):,} new rows: recall {recall:.1%}, false positive rate {false_alarms:.1%}")


if __name__ == "__main__":
    main()
