"""When SelfTuned measures: seldom while it finds the same, and at once where the learning rate leaps."""

from itertools import pairwise

import pytest
import torch

import nupi
from nupi.optim import gauge
from nupi.optim.base import Work

WIDE = torch.float64


def run(changes, steps, *, T=64, lr=0.5):
    """The dual steps at which a linear problem is measured, with learning rates that change at some of them."""
    x = torch.zeros(2, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=lr)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=T, primal=primal)
    found = []
    for step in range(1, steps + 1):
        primal.param_groups[0]["lr"] = changes.get(step, primal.param_groups[0]["lr"])
        violations = {"sum": x.sum() - 1}
        lagrangian.ascend(dual, violations)
        lagrangian(
            x[0], violations
        ).backward()  # gradients that never change: every measurement is the first one
        primal.step()
        primal.zero_grad()
        if dual.param_groups[0]["measured_at"] == step:
            found.append(step)
    return found, dual


def test_a_plant_that_does_not_change_is_measured_twice_in_steps_after_the_first_few():
    found, _ = run({}, 150)
    assert found == [1, 2, 4, 8, 16, 32, 64, 96, 128]


def test_a_long_run_is_measured_less_and_less_often():
    """Once `steps` are past, the interval is at least a quarter of the steps since the first measurement."""
    found, _ = run({}, 1000)
    later = [step for step in found if step > 128]
    assert later == [160, 200, 250, 313, 391, 489, 611, 764, 955]
    assert all(4 * (b - a) >= a - 1 for a, b in pairwise(later))


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_learning_rate_that_leaps_is_measured_at_once_and_then_often(factor):
    found, _ = run({101: 0.5 * factor}, 200)
    # The average of old and new, in logarithms, is off by 2, 2^(1/2), 2^(1/4) and 2^(1/8) = 1.09, which is steady.
    assert found[7:] == [96, 101, 109, 117, 125, 141, 173]


def test_a_learning_rate_that_creeps_is_seen_by_the_next_measurement():
    found, _ = run({129 + i: 0.5 * 0.97 ** (i + 1) for i in range(10)}, 300, T=256)
    assert found[7:9] == [128, 256]
    assert found[9] == 288  # 0.97^10 = 0.74 is not what it was


def test_a_response_that_changes_is_measured_eight_times_in_steps():
    x = torch.zeros(1, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=1e-9)
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=64, primal=primal)
    found = []
    for step in range(1, 80):
        violations = {"c": 1.2**step * x.sum() - 1}
        lagrangian.ascend(dual, violations)
        lagrangian(x.sum(), violations).backward()
        primal.step()
        primal.zero_grad()
        if dual.param_groups[0]["measured_at"] == step:
            found.append(step)
    assert found == [1, 2, 4, 8, *range(16, 80, 8)]


def test_the_interval_is_in_a_checkpoint():
    _, dual = run({}, 100)
    saved = dual.state_dict()
    assert saved["param_groups"][0]["interval"] == 32
    other = nupi.SelfTuned(
        [torch.zeros(1, dtype=WIDE)], steps=64, primal=torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    )
    other.load_state_dict(saved)
    assert other.param_groups[0]["interval"] == 32


def test_a_learning_rate_that_is_a_tensor_does_not_leap():
    found, _ = run({}, 40, lr=torch.tensor(0.5))
    assert found == [1, 2, 4, 8, 16, 32]


def test_a_dual_step_is_measured_once_however_often_the_model_moves_in_it(monkeypatch):
    """Also not before the first one: no multiplier has moved, so there is nothing to measure by."""
    measured = []
    real = gauge.observe
    monkeypatch.setattr(
        gauge,
        "observe",
        lambda dual, *args: measured.append(dual.param_groups[0]["taken"]) or real(dual, *args),
    )
    x = torch.zeros(2, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.5)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=64, primal=primal)
    lagrangian.show_losses_to(dual)  # as after an `ascend`
    lagrangian(x[0], {"sum": x.sum() - 1})
    for _ in range(8):
        lagrangian.ascend(dual, {"sum": x.sum() - 1})
        for _ in range(3):
            lagrangian(x[0], {"sum": x.sum() - 1}).backward()
            primal.step()
            primal.zero_grad()
    assert measured == [1, 2, 4, 8]


def test_rows_that_come_more_than_once_are_one_step_of_each():
    """As a compiled step gives them: each with the same error every time it comes."""
    states = []
    for rows in ([0, 1], [0, 0, 1, 1]):
        theta = torch.zeros(2, dtype=WIDE)
        dual = nupi.SelfTuned([theta], steps=20, primal=torch.optim.SGD([torch.zeros(1)], lr=0.1))
        for step in range(9):
            error = torch.tensor([0.3, -0.1], dtype=WIDE) * (1 + step % 3)
            index = torch.tensor(rows)
            dual.apply([Work(dual.param_groups[0], theta, error[index], None, index)])
            dual.state[theta]["response"].fill_(0.5)  # what a measurement would find
        states.append({"theta": theta, **dual.state[theta]})
    once, twice = states
    for slot, value in once.items():
        torch.testing.assert_close(twice[slot], value, rtol=0, atol=0, msg=slot)
