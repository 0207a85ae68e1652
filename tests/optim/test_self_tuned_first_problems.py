"""SelfTuned on problems that a new user meets first: fairness between groups, and one constraint per sample."""

import pytest
import torch

import nupi
from nupi import rates


def equalized_odds(seed, steps=500):
    """Recall and false positive rate of three groups at most 2 points apart, as on the page on fairness."""
    torch.manual_seed(seed)
    groups, hours = torch.arange(2_000) % 3, torch.randn(2_000)
    labels = (hours + 0.8 * (groups == 1) - 0.4 * (groups == 2) > 0.5).float()
    x = torch.stack([hours, (groups == 1).float(), (groups == 2).float()], 1)
    tpr = rates.recall(groups=3).gap() <= 0.02
    fpr = rates.false_positive_rate(groups=3).gap() <= 0.02
    lagrangian = nupi.Lagrangian({"tpr": tpr.kind(), "fpr": fpr.kind()})
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    primal = torch.optim.Adam(model.parameters(), lr=0.01)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=steps // 4, primal=primal)
    largest = 0.0
    for _ in range(steps):
        logits = model(x).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        violations = {name: rate(logits, labels, groups) for name, rate in (("tpr", tpr), ("fpr", fpr))}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
        largest = max(largest, *(m.max().item() for m in lagrangian.multipliers.values()))
    with torch.no_grad():
        chosen = (model(x).squeeze(1) > 0).float()
    gaps = []
    for label in (0, 1):
        found = [chosen[(groups == group) & (labels == label)].mean() for group in range(3)]
        gaps.append(float(max(found) - min(found)))
    return (chosen == labels).float().mean().item(), max(gaps), largest


@pytest.mark.filterwarnings("ignore:steps=125 is shorter")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2))])
def test_equalized_odds_between_three_groups(seed):
    """Labels can be told from features, so that a good classifier has no gaps. Multipliers once reached 200."""
    accuracy, gap, largest = equalized_odds(seed)
    assert accuracy > 0.98
    assert gap < 0.03
    assert largest < 50


def one_constraint_per_sample(seed, *, mean, epochs=300):
    """The program of the page on one constraint per sample; `mean` divides losses and violations by the batch."""
    torch.manual_seed(seed)
    x = torch.randn(64, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.95 * (torch.rand(64) < 0.15)
    model = torch.nn.Linear(3, 1)
    primal = torch.optim.SGD(model.parameters(), lr=0.05)
    lagrangian = nupi.Lagrangian({"row": nupi.Inequality(64)})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=300, primal=primal)
    for _ in range(epochs):
        for indices in torch.randperm(64).split(16):
            losses = (model(x[indices]).squeeze(1) - y[indices]).square()
            share = len(indices) if mean else 1
            violations = {"row": nupi.Indexed((losses - 0.75**2) / share, indices)}
            lagrangian.ascend(dual, violations)
            (lagrangian(losses.sum() / share, violations) * share / len(indices)).backward()
            primal.step()
            primal.zero_grad()
    with torch.no_grad():
        worst = (model(x).squeeze(1) - y).abs().max().item()
    return worst, lagrangian.multipliers["row"].max().item()


@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 1, 3, 4))]
)
def test_one_constraint_per_sample(seed, mean):
    """With fixed gains the largest error is 0.76 to 0.78. It once became infinite with three seeds of five."""
    worst, multiplier = one_constraint_per_sample(seed, mean=mean)
    assert worst < 0.84
    assert multiplier < 20


def steep_surrogate(seed, sharpness, limit=0.15, epochs=30):
    """A network that fits its data first, and whose rate of positive decisions is bounded through a steep sigmoid."""
    torch.manual_seed(seed)
    x, w = torch.randn(4_000, 10), torch.randn(10)
    y = (x @ w + 0.5 * torch.randn(4_000) > 1).float()
    rows = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(rows, batch_size=128, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    steps = epochs * len(loader)
    primal = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, steps)
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=steps // 4, primal=primal)
    for _ in range(epochs):
        for some, labels in loader:
            logits = model(some).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
            soft = torch.sigmoid(sharpness * logits).mean()
            violations = {"rate": nupi.Measured(soft - limit, (logits > 0).float().mean() - limit)}
            lagrangian.ascend(dual, violations)
            lagrangian(loss, violations).backward()
            primal.step()
            primal.zero_grad()
            schedule.step()
    with torch.no_grad():
        rate = (model(x) > 0).float().mean().item()
    return rate - limit, lagrangian.multipliers["rate"].item()


@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (12, 13))])
def test_a_steep_surrogate_on_batches(seed):
    """The loss is nearly flat when the multiplier begins to matter; it once was taken for too large at 1."""
    violation, _ = steep_surrogate(seed, sharpness=4.0)
    assert violation < 0.01


def test_a_rate_below_zero_does_not_run_away():
    """The violation answers until no decision is positive, and then no more; gradient ascent would go on for ever."""
    violation, multiplier = steep_surrogate(11, sharpness=1.0, limit=-0.05)
    assert violation == pytest.approx(0.05)
    assert multiplier < 500
