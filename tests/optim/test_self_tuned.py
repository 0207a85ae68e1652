"""SelfTuned reaches exact solutions, whatever the optimizer, the units and the noise."""

import math

import pytest
import torch
from self_tuned_runs import WIDE, networks, quadratic, train

import nupi
from nupi.optim import self_tuning


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_it_reaches_the_exact_solution_with_any_optimizer(kind, optimizer):
    build = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.02),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002),
    }[optimizer]
    x, primal, lagrangian, evaluate = quadratic(kind=kind, optimizer=build)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=150, primal=primal)
    train(primal, lagrangian, dual, evaluate, 900)
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], dtype=WIDE)
    # By hand: both rows hold with equality; x solves the KKT system. As inequalities both are active too.
    system = torch.cat(
        [torch.cat([torch.eye(3, dtype=WIDE), rows.T], 1), torch.cat([rows, torch.zeros(2, 2)], 1)]
    )
    solution = torch.linalg.solve(system, torch.tensor([1.0, 1, 0, 1, -1], dtype=WIDE))
    assert (solution[3:] > 0).all()
    tolerance = 1e-3 if optimizer in ("sgd", "momentum") else 3e-2
    torch.testing.assert_close(x.detach(), solution[:3], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer", "close"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05), 1e-9),
        (lambda p: torch.optim.Adam(p, lr=0.02), 0.05),
    ],  # Adam's eps has a unit
)
def test_units_drop_out(optimizer, close):
    paths = []
    for unit in (1.0, 1000.0, 1e-3):
        x, primal, lagrangian, evaluate = quadratic(unit, nupi.Inequality, optimizer)
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)
        train(primal, lagrangian, dual, evaluate, 120)
        paths.append((x.detach().clone(), unit * lagrangian.multipliers["rows"]))
    for x, multipliers in paths[1:]:
        torch.testing.assert_close(x, paths[0][0], rtol=close, atol=close)
        torch.testing.assert_close(multipliers, paths[0][1], rtol=close, atol=close)


def test_each_constraint_may_have_a_unit_of_its_own():
    x, primal, lagrangian, evaluate = quadratic()
    other, other_primal, other_lagrangian, plain = quadratic()

    def in_units():
        loss, violations = plain()
        return loss, {"rows": violations["rows"] * torch.tensor([100.0, 0.01], dtype=WIDE)}

    for parts in ((primal, lagrangian, evaluate), (other_primal, other_lagrangian, in_units)):
        dual = nupi.SelfTuned(parts[1].parameters(), steps=60, primal=parts[0])
        train(parts[0], parts[1], dual, parts[2], 200)
    torch.testing.assert_close(x, other, rtol=1e-3, atol=1e-3)


def test_noise_is_told_from_motion():
    torch.manual_seed(0)
    steps = 100.0
    param = torch.zeros(3)
    optimizer = nupi.SelfTuned([param], steps=steps)
    for t in range(400):
        signal = torch.tensor([0.0, 0.01 * t, math.sin(t / 20)])
        param.grad = signal + torch.tensor([0.3, 0.0, 0.0]) * torch.randn(3)
        optimizer.step()
    sigma = self_tuning.sigma(optimizer.state[param])
    assert 0.2 < sigma[0] < 0.4
    assert sigma[1] < 1e-3
    assert sigma[2] < 1e-3


def test_a_satisfied_noisy_inequality_keeps_its_multiplier_near_zero():
    torch.manual_seed(0)
    lagrangian = nupi.Lagrangian({"slack": nupi.Inequality()})
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    held = []
    for _ in range(400):
        violations = {"slack": 0.1 * x - 0.3 + 0.1 * torch.randn(1)}
        lagrangian.ascend(dual, violations)
        lagrangian((x - 0.1).square().sum(), violations).backward()
        primal.step()
        primal.zero_grad()
        held.append(lagrangian.multipliers["slack"].item())
    # The velocity form at a kp of 5 holds 0.97 here (docs/choosing.md).
    assert sum(held[100:]) / 300 < 0.05


@pytest.mark.filterwarnings("ignore:steps=75 is shorter")
@pytest.mark.parametrize("rate", [0.5, 2.0])  # one that can be met, and one that no model can meet
def test_a_network_on_batches_under_adam_does_not_run_away(rate):
    model, rows, labels = networks()
    primal = torch.optim.Adam(model.parameters(), lr=1e-2)
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=75, primal=primal)
    left = []  # on all rows
    for _ in range(300):
        some = torch.randint(512, (32,))
        logits = model(rows[some]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[some])
        violations = {"rate": rate - logits.sigmoid().mean()}
        left.append(rate - model(rows).detach().sigmoid().mean().item())
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    multiplier = lagrangian.multipliers["rate"].item()
    if rate < 1:
        assert abs(sum(left[-75:]) / 75) < 0.01
        assert max(left[-75:]) < 0.08  # batches of 32 shake the model: 0.02 in the root mean square
        assert multiplier < 10
    else:
        # It grows at a constant rate, not exponentially: without the limits it is 1e9 and more by now.
        assert multiplier < 1e6


def test_without_a_primal_it_identifies_the_response():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=150)
    train(primal, lagrangian, dual, evaluate, 900)
    assert evaluate()[1]["rows"].abs().max() < 0.02
    assert dual.gains()["rows"]["measured_at"] == 0
