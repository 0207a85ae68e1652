"""Two tasks that nobody looked at while the rule was made. They were written down before it was final.

No constant of the rule was chosen on them, and no run of them was seen before the rule was final.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import nn
from torch.nn.functional import mse_loss

from nupi import Band, Inequality
from nupi.paper.self_tuned.task import Task


def tumours(seed: int, *, steps: int = 1_200, batch: int = 64) -> Task:
    """Breast tumours: as few false alarms as possible, while at least 95% of the malignant ones are found.

    The loss is the mean prediction among benign rows, the constraint is on the mean prediction among malignant rows.
    SGD with Nesterov momentum.
    """
    features, benign = load_breast_cancer(return_X_y=True)
    rows, malignant = torch.from_numpy(features).float(), torch.from_numpy(benign == 0).float()
    rows = (rows - rows.mean(0)) / rows.std(0)
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(rows.shape[1], 16), nn.Tanh(), nn.Linear(16, 1))

    def rates(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, ill = model(rows[some]).squeeze(1).sigmoid(), malignant[some]
        alarms = (found * (1 - ill)).sum() / (1 - ill).sum().clamp(min=1.0)
        return alarms, (found * ill).sum() / ill.sum().clamp(min=1.0)

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        alarms, found = rates(torch.randint(len(rows), (batch,), generator=rng))
        return alarms, {"found": 0.95 - found}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            alarms, found = rates(torch.arange(len(rows)))
        return {"violation": max(0.0, 0.95 - float(found)), "loss": float(alarms)}

    primal = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    parameters = list(model.parameters())
    return Task(f"tumours, seed {seed}", parameters, primal, {"found": Inequality()}, evaluate, steps, judge)


def diabetes(seed: int, *, steps: int = 1_200, batch: int = 64) -> Task:
    """Diabetes: predict its progress, with mean predictions for both sexes within 0.02 standard deviations. NAdam."""
    features, progress = load_diabetes(return_X_y=True)
    rows, truth = torch.from_numpy(features).float(), torch.from_numpy(progress).float()
    rows, truth = rows / rows.std(0), (truth - truth.mean()) / truth.std()
    man = (rows[:, 1] > 0).float()
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(rows.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))

    def terms(some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        guess, men = model(rows[some]).squeeze(1), man[some]
        of_men = (guess * men).sum() / men.sum().clamp(min=1.0)
        of_women = (guess * (1 - men)).sum() / (1 - men).sum().clamp(min=1.0)
        return mse_loss(guess, truth[some]), of_men - of_women

    def evaluate() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, gap = terms(torch.randint(len(rows), (batch,), generator=rng))
        return loss, {"gap": gap}

    def judge() -> dict[str, float]:
        with torch.no_grad():
            loss, gap = terms(torch.arange(len(rows)))
        return {"violation": max(0.0, abs(float(gap)) - 0.02), "loss": float(loss)}

    primal = torch.optim.NAdam(model.parameters(), lr=2e-3)
    parameters = list(model.parameters())
    return Task(
        f"diabetes, seed {seed}", parameters, primal, {"gap": Band(tolerance=0.02)}, evaluate, steps, judge
    )
