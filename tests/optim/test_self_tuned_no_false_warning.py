"""Honest training loops in which SelfTuned has to wait, and warns of nothing: a warning is an error here."""

import pytest
import torch
from self_tuned_runs import quadratic, train

import nupi


def test_learning_rates_that_warm_up_are_no_short_horizon():
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(primal, 1e-4, 1.0, total_iters=30)
    lagrangian = nupi.Lagrangian({"far": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    for _ in range(400):
        violations = {"far": x - 1.0}
        lagrangian.ascend(dual, violations)
        lagrangian(x.square().sum() + x.sum(), violations).backward()
        primal.step()
        primal.zero_grad()
        warm_up.step()
    assert x.item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("how", ["rate", "frozen"])
def test_a_model_that_rests_at_first_is_measured_when_it_moves(how):
    x, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    if how == "rate":
        primal.param_groups[0]["lr"] = 0.0
        train(primal, lagrangian, dual, evaluate, 60)
        primal.param_groups[0]["lr"] = 0.05
    else:
        x.requires_grad_(requires_grad=False)
        for _ in range(60):
            loss, violations = evaluate()
            lagrangian.ascend(dual, violations)
            lagrangian(loss, violations)
        x.requires_grad_()
    assert dual.gains()["rows"]["measured_at"] == 0
    train(primal, lagrangian, dual, evaluate, 500)
    assert (dual.gains()["rows"]["response"] > 0).all()
    assert evaluate()[1]["rows"].abs().max() < 1e-3


@pytest.mark.parametrize("stepping", [0, 1])
def test_any_of_several_primals_may_do_the_stepping(stepping):
    _, primal, lagrangian, evaluate = quadratic()
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    both = [primal, other] if stepping == 0 else [other, primal]
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=both)
    for _ in range(300):
        _, violations = evaluate()
        lagrangian.ascend(dual, violations)
        for _ in range(2):
            lagrangian(*evaluate()).backward()
            primal.step()
            primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == 2
    assert dual.gains()["rows"]["measured_at"] > 0


def test_many_dual_steps_to_a_step_of_the_model():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=2000, primal=primal)
    for _ in range(20):
        for _ in range(60):
            lagrangian.ascend(dual, {"rows": evaluate()[1]["rows"].detach()})
        train(primal, lagrangian, dual, evaluate, 1)


def test_a_model_that_was_trained_for_long_before_its_constraints_came():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    for _ in range(100):
        evaluate()[0].backward()
        primal.step()
        primal.zero_grad()
    train(primal, lagrangian, dual, evaluate, 50)
    assert dual.gains()["rows"]["measured_at"] > 0
