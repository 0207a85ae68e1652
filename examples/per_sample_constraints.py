"""A constraint for each row of a data set: a line with no error above 1, fitted on batches.

Minimize the sum of squared errors over all rows, subject to error_i^2 <= 1 for every row i. The data set also returns
the index of each row, so that a batch knows its multipliers.

Why a sum of losses and not their mean? The Lagrangian of the whole problem is

    sum_i loss_i + sum_i multiplier_i * violation_i,          over all rows.

`lagrangian(losses.sum(), Indexed(...))` is the part of it in a batch: an unbiased estimate of the whole, times the
batch's share of all rows. Divide it by the number of rows of the batch. The gradient then has the scale of a mean loss,
and the multipliers are still those of the sum. With `losses.mean()` instead of the sum, the violation of one row would
weigh as much as the mean of all losses. The multipliers would be smaller by the number of rows of a batch, and so
differ between batch sizes.

    python examples/per_sample_constraints.py
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

import nupi

ROWS, FEATURES, LIMIT = 64, 3, 1.0


class WithIndices(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Rows with their indices."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


def data() -> WithIndices:
    """Rows around a line. Most errors are 0, some nearly 1; least squares has errors above 1 there."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=rng)
    off = torch.where(torch.rand(ROWS, generator=rng) < 0.15, 0.95, 0.0)
    return WithIndices(x, x @ torch.tensor([1.0, -2.0, 0.5]) + off)


def train(rows: WithIndices, batch: int = 16, epochs: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights, and the multiplier of each row."""
    torch.manual_seed(0)
    weights = torch.zeros(FEATURES, requires_grad=True)
    primal = torch.optim.SGD([weights], lr=0.05)
    lagrangian = nupi.Lagrangian({"row": nupi.Inequality(ROWS)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.2, kp=1.0)  # moves the rows of a batch, and no others
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, epochs)
    for _ in range(epochs):
        for x, y, indices in DataLoader(rows, batch_size=batch, shuffle=True):
            losses = (x @ weights - y).square()
            violations = {"row": nupi.Indexed(losses - LIMIT**2, indices)}
            lagrangian.ascend(dual, violations)
            (lagrangian(losses.sum(), violations) / len(y)).backward()
            primal.step()
            primal.zero_grad()
        schedule.step()
    return weights.detach(), lagrangian.multipliers["row"].detach()


def main() -> None:
    """Fit with and without the constraints."""
    rows = data()
    usual = torch.linalg.lstsq(rows.x, rows.y).solution
    weights, multipliers = train(rows)
    for name, each in (("least squares", usual), ("with constraints", weights)):
        errors = (rows.x @ each - rows.y).abs()
        print(f"{name:<17} sum of squares {errors.square().sum():.3f}, largest error {errors.max():.4f}")
    print(f"{(multipliers > 0).sum()} of {ROWS} rows have a multiplier above 0")


if __name__ == "__main__":
    main()
