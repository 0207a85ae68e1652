"""Small problems for SelfTuned: a quadratic program with two rows, a network, and the loop that trains them."""

import torch

import nupi

WIDE = torch.float64


def quadratic(unit=1.0, kind=nupi.Equality, optimizer=None):
    """min |x|^2 / 2 - x_1 - x_2 subject to two rows of A x = b (or <= b), with an optimizer of x."""
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], dtype=WIDE)
    x = torch.zeros(3, dtype=WIDE, requires_grad=True)
    primal = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.05)))([x])
    lagrangian = nupi.Lagrangian({"rows": kind(2, init=torch.zeros(2, dtype=WIDE))})

    def evaluate():
        return x.square().sum() / 2 - x[:2].sum(), {
            "rows": unit * (rows @ x - torch.tensor([1.0, -1.0], dtype=WIDE))
        }

    return x, primal, lagrangian, evaluate


def train(primal, lagrangian, dual, evaluate, steps):
    for _ in range(steps):
        loss, violations = evaluate()
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()


def networks(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    rows, labels = torch.randn(512, 8), (torch.rand(512) < 0.3).float()
    return model, rows, labels + 0 * rows[:, 0]
