"""A classifier that treats women and men alike: from the data to a fair model, in one file.

On the Adult census data a classifier says "earns more than 50K" of men far more often than of women. Here the
same network is trained twice, as usual and with the constraint that both rates are equal, and both are judged
on rows they have not seen. The constraint takes four lines; they are marked.

    python examples/fair_classifier.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import nupi
from nupi.paper.data import adult
from nupi.rates import StatisticalParity

PARITY = StatisticalParity(groups=2, against="groups")  # one constraint: rate of women - rate of men = 0


def women_and_men(rows: adult.Split, names: tuple[str, ...]) -> adult.Split:
    """The same rows with two groups, 0 for women and 1 for men, in place of sex times race."""
    is_male = torch.tensor([name.startswith("Male") for name in names])
    return adult.Split(rows.features, rows.labels, is_male[rows.groups].long())


@torch.no_grad()
def evaluate(model: nn.Module, rows: adult.Split) -> tuple[float, torch.Tensor]:
    """Accuracy, and the exact gap between the rates at which women and men are classified positive."""
    logits = model(rows.features).squeeze(1)
    accuracy = ((logits > 0) == (rows.labels == 1)).float().mean().item()
    return accuracy, PARITY.measure([(logits, rows.labels, rows.groups)], hard=True)


def train(rows: adult.Split, *, fair: bool, epochs: int, seed: int) -> nn.Module:
    """Minimise the cross-entropy; if `fair`, subject to P(positive | woman) = P(positive | man)."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(rows.features.shape[1], 100), nn.ReLU(), nn.Linear(100, 1))
    primal = torch.optim.Adam(model.parameters(), lr=1e-3)

    lagrangian = nupi.Lagrangian({"parity": nupi.Equality(PARITY.size)})  # 1. the constraint's multiplier
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0, kp=1.0)  # 2. the controller that moves it

    for epoch in range(epochs):
        accuracy, gap = evaluate(model, rows)
        if fair:
            lagrangian.ascend(dual, {"parity": gap})  # 3. once an epoch, on the exact gap over all rows
        print(
            f"  epoch {epoch:2d}   training accuracy {accuracy:6.1%}   gap {gap.item():+6.1%}   "
            f"multiplier {lagrangian.multipliers['parity'].item():+.2f}"
        )
        for batch in torch.randperm(len(rows)).split(512):
            logits = model(rows.features[batch]).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, rows.labels[batch])
            # 4. The Lagrangian takes the place of the loss; on a batch the gap is soft, and has a gradient.
            loss = lagrangian(loss, {"parity": PARITY(logits, rows.labels[batch], rows.groups[batch])})
            loss.backward()
            primal.step()
            primal.zero_grad()
    return model


def main() -> None:
    """Train both, and judge both on the test rows."""
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
    for name, (accuracy, gap) in verdicts.items():
        print(f"{name:<26}{accuracy:8.1%}   {gap.item():+26.1%}")


if __name__ == "__main__":
    main()
