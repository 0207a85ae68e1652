"""SelfTuned that measures the response on data of the user's choice, and not on the batch."""

import copy
import math
import warnings

import pytest
import torch
from scipy.optimize import brentq
from self_tuned_runs import WIDE, quadratic, train

import nupi


def test_the_response_is_that_of_the_data_that_evaluate_gives():
    found = []
    for own in (False, True):
        _, primal, lagrangian, everything = quadratic()
        calls = []

        def counted(everything=everything, calls=calls):
            calls.append(None)
            return everything()

        def batch(everything=everything):
            """A batch whose rows are noisy has longer gradients: here three times as long."""
            loss, violations = everything()
            return loss, {"rows": 3 * violations["rows"]}

        dual = nupi.SelfTuned(
            lagrangian.parameters(), steps=60, primal=primal, evaluate=counted if own else None
        )
        train(primal, lagrangian, dual, batch, 20)
        found.append(dual.gains()["rows"]["response"])
        assert dual.gains()["rows"]["measured_at"] == 16
        assert len(calls) == (5 if own else 0)  # at steps 1, 2, 4, 8 and 16, and at no other
    torch.testing.assert_close(found[0], 9 * found[1])


def gaps(how):
    """The gap between a small group and all rows, epoch by epoch; one row in 25 is of the group.

    The multiplier moves once an epoch, on all rows. A batch of 32 has one row of the group, whose gradient is mostly
    its own.
    """
    torch.manual_seed(0)
    rows = torch.randn(2_000, 30)
    small = torch.rand(2_000) < 0.04
    labels = (rows[:, 0] + 1.5 * small + torch.randn(2_000) > 0.5).float()
    model = torch.nn.Sequential(torch.nn.Linear(30, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def on(some):
        logits = model(rows[some]).squeeze(1)
        rate, of_group = logits.sigmoid(), small[some]
        gap = (rate * of_group).sum() / of_group.sum().clamp(min=1) - rate.mean()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[some]), {"gap": gap}

    everything = torch.arange(2_000)
    primal = torch.optim.Adam(model.parameters(), lr=3e-3)
    lagrangian = nupi.Lagrangian({"gap": nupi.Equality()})
    evaluate = (lambda: on(everything)) if how == "all rows" else None
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal, evaluate=evaluate)
    left = []
    for _ in range(32):
        with torch.no_grad():
            violations = on(everything)[1]
        left.append(violations["gap"].abs().item())
        if how != "no multiplier":
            lagrangian.ascend(dual, violations)
        for some in torch.randperm(2_000).split(32):
            lagrangian(*on(some)).backward()
            primal.step()
            primal.zero_grad()
    return torch.tensor(left)


@pytest.mark.filterwarnings("ignore:steps=8 is shorter")
def test_measured_on_all_rows_a_rare_group_meets_its_constraint_sooner():
    free, on_batches, on_all_rows = map(gaps, ("no multiplier", "batches", "all rows"))
    assert free[8:16].mean() > 0.08
    # The response of one row is many times that of its group.
    assert on_all_rows[8:16].mean() < on_batches[8:16].mean() / 2 < free[8:16].mean() / 4
    assert on_all_rows[-8:].mean() < 0.015


def test_the_curvature_under_adam_is_that_along_the_secant_too():
    """H = J P K P J^T / J P J^T for a loss x^T K x / 2, with the P that the response has."""
    torch.manual_seed(0)
    hessian = torch.tensor([0.2, 1.0, 3.0, 0.6], dtype=WIDE)
    slope = torch.tensor([1.0, -2.0, 0.5, 0.7], dtype=WIDE)
    x = torch.zeros(4, dtype=WIDE, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.01)
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)

    def evaluate():
        return (hessian * x.square()).sum() / 2, {"c": slope @ x - 1}

    for step in range(5):
        loss, violations = evaluate()
        if step % 2 == 0:
            lagrangian.ascend(dual, violations)
        if step == 4:
            break
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    dual.param_groups[0]["measured_at"] = 2
    for each in ("curvature", "response"):  # what was known before would be averaged with
        dual.state[lagrangian.get_parameter("c")][each].zero_()
    theta = lagrangian.multipliers["c"].item()
    coming = (hessian * x.detach() + theta * slope) ** 2
    moment = (0.999 * primal.state[x]["exp_avg_sq"] + 0.001 * coming) / (1 - 0.999**5)
    length = slope.abs()
    dual.param_groups[0]["taken"] = 4  # a step at which it measures
    lagrangian(*evaluate())

    worst = 1.0  # at x = 0
    need = min(4.0 / 40 * worst / 2, 0.5 * float((0.01 * length).sum()))

    def moved(delta):
        part = delta * length
        return float((0.01 * length * part / (moment + part**2).sqrt()).sum()) - need

    delta = brentq(moved, 1e-9, 1e6, xtol=1e-14)
    p = 0.01 / (moment + (delta * slope) ** 2 + (0.2 * theta * slope) ** 2).sqrt()
    expected = ((p * slope) ** 2 * hessian).sum() / (p * slope**2).sum()
    torch.testing.assert_close(dual.gains()["c"]["curvature"], expected.reshape(1), rtol=1e-5, atol=0)


def test_evaluate_is_given_with_the_optimizer_of_the_model():
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    with pytest.raises(TypeError, match="evaluate came without primal"):
        nupi.SelfTuned(lagrangian.parameters(), steps=10, evaluate=lambda: None)
    with pytest.raises(TypeError, match=r"evaluate must be a function that returns .* but a dict came"):
        nupi.SelfTuned(lagrangian.parameters(), steps=10, primal=primal, evaluate={})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda x: x.sum(), r"evaluate must return \(loss, violations\).* but Tensor came"),
        (
            lambda x: (x.sum(), x.sum(), 3),
            r"evaluate must return \(loss, violations\).* but \(Tensor, Tensor, int\) came",
        ),
        (lambda x: (x.detach().sum(), {"c": x.sum()}), "the loss that evaluate returned has no gradient"),
        (lambda x: (x, {"c": x.sum()}), r"a scalar loss, but it has shape \(2,\); take its mean or sum"),
        (lambda x: (x.sum() / 0, {"c": x.sum()}), "the loss that evaluate returned is not finite"),
        (
            lambda x: (x.sum(), {"c": x.sum() * math.nan}),
            "the violation of 'c' that evaluate returned is not finite",
        ),
        (
            lambda x: (x.sum(), {"c": x.detach().sum()}),
            "the violation of 'c' that evaluate returned has no gradient",
        ),
        (lambda x: (x.sum(), {"d": x.sum()}), "'d'"),
    ],
)
def test_what_evaluate_returns_is_checked_and_nothing_is_lost(given, said):
    x = torch.ones(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=10, primal=primal, evaluate=lambda: given(x))
    lagrangian.ascend(dual, {"c": x.sum()})
    before = copy.deepcopy(dual.state_dict())
    with pytest.raises((TypeError, ValueError, KeyError), match=said):
        lagrangian(x.sum(), {"c": x.sum()})
    after = dual.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][slot], value) for slot, value in before["state"][0].items())


def test_a_copy_is_told_what_to_measure_on_by_watch():
    _, primal, lagrangian, everything = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal, evaluate=everything)
    train(primal, lagrangian, dual, everything, 3)
    twin, its_lagrangian = copy.deepcopy((dual, lagrangian))
    calls = []

    def counted():
        calls.append(None)
        return everything()

    twin.watch(primal, counted)
    train(primal, its_lagrangian, twin, everything, 2)
    assert len(calls) == 1  # at step 4


def test_evaluate_may_call_the_lagrangian_itself():
    """It then gives what a step trains on; that call is no step, and is not measured again."""
    _, primal, lagrangian, everything = quadratic()
    calls = []

    def evaluate():
        calls.append(None)
        loss, violations = everything()
        lagrangian(loss, violations)
        return loss, violations

    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal, evaluate=evaluate)
    train(primal, lagrangian, dual, everything, 4)
    assert len(calls) == 3  # at steps 1, 2 and 4
    assert (dual.gains()["rows"]["response"] > 0).all()


def test_a_batch_that_shows_nothing_does_not_make_the_next_measurement_later():
    """A measurement on nan finds nothing, which is no agreement with what was known."""
    intervals = []
    for broken in (False, True):
        _, primal, lagrangian, everything = quadratic()
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=256, primal=primal)
        for step in range(1, 17):
            loss, violations = everything()
            lagrangian.ascend(dual, violations)
            if broken and step == 16:  # a step at which it measures
                violations = {"rows": violations["rows"] * math.nan}
            lagrangian(loss, violations).backward()
            if not (broken and step == 16):
                primal.step()
            primal.zero_grad()
        intervals.append(dual.param_groups[0]["interval"])
    steady, shaken = intervals
    assert (shaken, steady) == (256 // 8, 256 // 2)


@pytest.mark.parametrize(
    ("of_the_loss", "of_the_violation", "said"),
    [(0.001, 1.0, "a loss of"), (1.0, 1000.0, "a violation of 'rows'"), (3.0, 0.3, None)],
)
def test_another_unit_of_evaluate_is_said(of_the_loss, of_the_violation, said):
    x, primal, lagrangian, everything = quadratic()
    x.data.fill_(1.0)

    def evaluate():
        loss, violations = everything()
        return of_the_loss * loss, {"rows": of_the_violation * violations["rows"]}

    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal, evaluate=evaluate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(primal, lagrangian, dual, everything, 8)
    units = [str(each.message) for each in caught if "have to be in one unit" in str(each.message)]
    assert len(units) == (said is not None)
    assert said is None or said in units[0]
