"""A classifier that treats women and men alike: from the data to a fair model, in one file.

On the Adult census data, a classifier says "earns more than 50K" far more often for men than for women. Here the same
network is trained twice: as usual, and with the constraint that the two rates differ by at most 2 percentage points.
Both are tested on new rows. The constraint takes five lines, which are numbered.

    python examples/fair_classifier.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import nupi
from nupi import rates
from nupi.paper.data import adult

POSITIVE = rates.positive_rate(groups=2)
PARITY = POSITIVE.gap() <= 0.02  # 1. the constraint: |rate of women - rate of men| <= 0.02, of decisions


def women_and_men(rows: adult.Split, names: tuple[str, ...]) -> adult.Split:
    """The same rows with two groups, 0 for women and 1 for men, instead of the combinations of sex and race."""
    is_male = torch.tensor([name.startswith("Male") for name in names])
    return adult.Split(rows.features, rows.labels, is_male[rows.groups].long())


@torch.no_grad()
def evaluate(model: nn.Module, rows: adult.Split) -> tuple[float, float, nupi.Averaged]:
    """Accuracy, the gap between women and men, and the violation of the constraint, by the decisions on all rows."""
    batch = [(model(rows.features).squeeze(1), rows.labels, rows.groups)]
    gap = (POSITIVE[0] - POSITIVE[1]).measure(batch).item()
    return rates.accuracy().measure(batch).item(), gap, PARITY.measure(batch)


def train(rows: adult.Split, *, fair: bool, epochs: int, seed: int) -> nn.Module:
    """Minimise the cross-entropy; if `fair`, subject to the constraint."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(rows.features.shape[1], 100), nn.ReLU(), nn.Linear(100, 1))
    primal = torch.optim.Adam(model.parameters(), lr=1e-3)

    lagrangian = nupi.Lagrangian({"parity": PARITY.kind()})  # 2. the constraint's multipliers

    def soft(some: torch.Tensor | slice) -> tuple[torch.Tensor, dict[str, nupi.Averaged]]:
        """The loss and the violation that the model sees on some rows: the gap is soft, with a gradient."""
        logits, labels, groups = model(rows.features[some]).squeeze(1), rows.labels[some], rows.groups[some]
        return binary_cross_entropy_with_logits(logits, labels), {
            "parity": PARITY.soft(logits, labels, groups)
        }

    # 3. the controller that moves them; it finds its gains, measured on all rows, by which it is moved
    dual = nupi.SelfTuned(
        lagrangian.parameters(), steps=epochs / 4, primal=primal, evaluate=lambda: soft(slice(None))
    )
    best = nupi.Best(lagrangian, tolerance=0.0, higher_is_better=True)

    for epoch in range(epochs):
        accuracy, gap, violation = evaluate(model, rows)
        if fair:
            best.see(model, accuracy, {"parity": violation}, epoch=epoch)
            lagrangian.ascend(dual, {"parity": violation})  # 4. once an epoch, by the decisions on all rows
        print(f"  epoch {epoch:2d}   training accuracy {accuracy:6.1%}   gap {gap:+6.1%}")
        for batch in torch.randperm(len(rows)).split(512):
            loss, violations = soft(batch)
            if fair:
                loss = lagrangian(loss, violations)  # 5. the Lagrangian replaces the loss
            loss.backward()
            primal.step()
            primal.zero_grad()
    if fair:
        accuracy, _, violation = evaluate(model, rows)
        best.see(model, accuracy, {"parity": violation}, epoch=epochs)
        best.restore(model)
        print(f"  {best}")
    return model


def main() -> None:
    """Train both, and test both on the test rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    data = adult.load()
    rows, unseen = (women_and_men(split, data.groups) for split in (data.train, data.test))
    verdicts = {}
    for name, fair in (("as usual", False), ("with the constraint", True)):
        print(f"\nTraining {name}")
        verdicts[name] = evaluate(train(rows, fair=fair, epochs=options.epochs, seed=options.seed), unseen)

    print("\nOn the test rows          accuracy   positive rate, women - men")
    for name, (accuracy, gap, _) in verdicts.items():
        print(f"{name:<26}{accuracy:8.1%}   {gap:+26.1%}")


if __name__ == "__main__":
    main()
