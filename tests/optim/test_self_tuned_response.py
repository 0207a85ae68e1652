"""The response that SelfTuned measures, against closed forms."""

import math

import pytest
import torch
from scipy.optimize import brentq
from self_tuned_runs import WIDE, networks, quadratic, train

import nupi
from nupi.plant import measure, scalings


def test_the_response_under_sgd_is_the_row_sum_of_the_gain_matrix():
    x, primal, lagrangian, evaluate = quadratic(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5))
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, evaluate, 1)
    found = dual.gains()["rows"]
    # M = 0.1 A A^T = 0.1 [[5, -2], [-2, 10]]; each row in its own unit: M_ii (1 + 2 / sqrt(50)).
    overlap = 1 + 2 / math.sqrt(50)
    torch.testing.assert_close(found["response"], torch.tensor([0.5, 1.0], dtype=WIDE) * overlap)
    assert found["measured_at"] == 1
    assert (found["ki"] > 0).all()  # the gains that follow serve the very next step
    torch.testing.assert_close(found["nu"], 1 - dual.state[lagrangian.get_parameter("rows")]["weight"])
    # The loss pulls with (-1, -1, 0) at x = 0: its length over that of each row is the multiplier that balances it.
    torch.testing.assert_close(
        dual.state[lagrangian.get_parameter("rows")]["balance"],
        torch.tensor([2 / 5, 2 / 10], dtype=WIDE).sqrt(),
    )
    assert x.grad is None


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_response_of_an_adaptive_optimizer_is_a_secant(optimizer):
    torch.manual_seed(0)
    x = torch.randn(6, dtype=WIDE, requires_grad=True)
    slope = torch.randn(6, dtype=WIDE)
    primal = optimizer([x], lr=0.01)
    for _ in range(3):
        x.square().sum().backward()
        primal.step()
        primal.zero_grad()
    state = primal.state[x]
    # The second moment that the coming step will have, with the gradient of the Lagrangian at a multiplier of 2.
    coming = (2 * x.detach() + 2.0 * slope) ** 2
    if "square_avg" in state:
        moment = 0.99 * state["square_avg"] + 0.01 * coming
    else:
        moment = (0.999 * state["exp_avg_sq"] + 0.001 * coming) / (1 - 0.999**4)
    violation, theta, need = (slope @ x).reshape(1), torch.tensor([2.0], dtype=WIDE), 0.01
    true = torch.tensor([True])
    plant = measure(
        scalings([primal]),
        x.square().sum(),
        violation,
        theta,
        true,
        violation.detach().abs(),
        [1],
        need,
        torch.Generator(),
    )

    def moved(delta):
        part = (delta * slope.abs()) ** 2
        return float((0.01 * slope.abs() * part.sqrt() / (moment + part).sqrt()).sum()) - need

    delta = brentq(moved, 1e-12, 1e6, xtol=1e-14)
    p = 0.01 / (moment + (delta * slope) ** 2 + (0.2 * 2.0 * slope) ** 2).sqrt()
    torch.testing.assert_close(plant.response, (p * slope**2).sum().reshape(1), rtol=1e-6, atol=0)
    top = 0.01 * slope.abs().sum() / violation.detach().abs()
    torch.testing.assert_close(plant.speed, top[0])


@pytest.mark.parametrize("form", ["indexed", "averaged"])
def test_indexed_and_averaged_violations_are_measured_as_the_dense_ones(form):
    found = []
    for kind in ("dense", form):
        x, primal, lagrangian, evaluate = quadratic()
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)

        def shaped(evaluate=evaluate, kind=kind):
            loss, violations = evaluate()
            rows = violations["rows"]
            if kind == "indexed":
                rows = nupi.Indexed(rows.flip(0), torch.tensor([1, 0]))
            elif kind == "averaged":
                rows = nupi.Averaged(rows * 4, torch.tensor([4, 4]))
            return loss, {"rows": rows}

        train(primal, lagrangian, dual, shaped, 50)
        found.append((x.detach().clone(), dual.gains()["rows"]["response"]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_rows_that_a_batch_does_not_show_have_the_response_of_those_that_it_shows():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)

    def first_row():
        loss, violations = evaluate()
        return loss, {"rows": nupi.Indexed(violations["rows"][:1], torch.tensor([0]))}

    train(primal, lagrangian, dual, first_row, 1)
    # lr |a_0|^2 = 0.05 * 5, in half of the steps: a batch shows one row of two, and one row is live.
    torch.testing.assert_close(dual.gains()["rows"]["response"], torch.full((2,), 0.125, dtype=WIDE))
    assert lagrangian.multipliers["rows"][1] == 0


def test_a_constraint_that_a_measurement_missed_is_measured_when_it_is_shown():
    """Steps 1, 2, 4, 8 and 16 show the first group alone; 20 is no step to measure at."""
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)
    seen = []
    for step in range(1, 25):
        loss, violations = evaluate()
        shown = torch.tensor([1, int(step % 5 == 0)])
        lagrangian.ascend(dual, {"rows": nupi.Averaged(violations["rows"], shown)})
        lagrangian(loss, {"rows": nupi.Averaged(violations["rows"], shown)}).backward()
        primal.step()
        primal.zero_grad()
        seen.append(dual.gains()["rows"]["measured_at"])
    assert seen[3:6] == [4, 5, 5]
    assert (dual.gains()["rows"]["ki"] > 0).all()
    assert lagrangian.multipliers["rows"][1] != 0


def test_a_constraint_without_a_gradient_is_not_measured_for_ever():
    x, primal, lagrangian, _ = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=1000, primal=primal)
    measured = set()

    def evaluate():
        if dual.state:
            measured.add(dual.gains()["rows"]["measured_at"])
        return x.square().sum(), {"rows": torch.stack([x.sum() - 1, 0.0 * x.sum() + 1])}

    with pytest.warns(UserWarning, match="found no response of 'rows', so these multipliers stay") as said:
        train(primal, lagrangian, dual, evaluate, 60)
    assert 16 <= len(measured) < 30
    assert len(said) == 1
    assert dual.gains()["rows"]["response"][1] == 0


def test_two_dual_optimizers_of_one_lagrangian_each_measure_their_own_multipliers():
    x = torch.zeros(2, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    kinds = {name: nupi.Equality(init=torch.zeros((), dtype=WIDE)) for name in ("a", "b")}
    lagrangian = nupi.Lagrangian(kinds)
    duals = [nupi.SelfTuned([lagrangian.get_parameter(each)], steps=40, primal=primal) for each in ("a", "b")]
    for _ in range(200):
        violations = {"a": x[0] - 1, "b": 3 * x[1] + 1}
        for dual, name in zip(duals, ("a", "b"), strict=True):
            lagrangian.ascend(dual, {name: violations[name]})
        lagrangian(x.square().sum() / 2, violations).backward()
        primal.step()
        primal.zero_grad()
    found = [float(dual.gains()[name]["response"]) for dual, name in zip(duals, ("a", "b"), strict=True)]
    assert found == pytest.approx([0.1, 0.9])  # lr |gradient|^2
    assert x.tolist() == pytest.approx([1.0, -1 / 3], abs=1e-3)


def test_many_constraints_by_random_signs_are_on_the_safe_side(monkeypatch):
    torch.manual_seed(1)
    rows = torch.randn(40, 12, dtype=WIDE) + 0.5
    x = torch.zeros(12, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    violations = rows @ x + 1
    everything = (
        violations,
        torch.zeros(40, dtype=WIDE),
        torch.ones(40, dtype=torch.bool),
        violations.detach(),
    )
    monkeypatch.setattr("nupi.plant.response.MOST_NUMBERS", 100)
    signs = torch.Generator().manual_seed(0)
    plant = measure(scalings([primal]), x.sum(), *everything, [40], 1.0, signs)
    largest = torch.linalg.eigvalsh(0.1 * rows @ rows.T)[-1]
    assert (plant.response == plant.response[0]).all()
    assert 0.5 * largest < plant.response[0] < 3 * largest


@pytest.mark.parametrize("between", [2, 10])
def test_once_an_epoch_the_response_counts_the_steps_between(between):
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=30, primal=primal)
    for step in range(600):
        loss, violations = evaluate()
        if step % between == 0:
            lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == between
    # The Hessian is the identity and P is 0.05: a drift relaxes by 0.05 a primal step.
    torch.testing.assert_close(
        dual.gains()["rows"]["curvature"], torch.full((2,), 0.05, dtype=WIDE), rtol=1e-6, atol=0
    )
    assert evaluate()[1]["rows"].abs().max() < 1e-3


def test_under_autocast_and_accumulation_it_measures_as_without():
    model, rows, labels = networks()
    primal = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lagrangian = nupi.Lagrangian({"rate": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)
    for _ in range(100):
        some = torch.randint(512, (64,))
        for part in some.chunk(2):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(rows[part]).squeeze(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[part])
                violations = {"rate": logits.sigmoid().float().mean() - 0.6}
            if part is not some:
                (lagrangian(loss, violations) / 2).backward()
        lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == 1
    with torch.no_grad():
        assert abs(model(rows).sigmoid().mean() - 0.6) < 0.06


def test_constraints_that_neither_push_nor_are_violated_have_no_part_in_the_response_of_others():
    _, primal, lagrangian, evaluate = quadratic(
        kind=nupi.Inequality, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5)
    )
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, evaluate, 1)
    # At x = 0 the first row is met and the second violated; M = 0.1 [[5, -2], [-2, 10]].
    overlap = 1 + 2 / math.sqrt(50)
    expected = torch.tensor([0.5 * overlap, 1.0], dtype=WIDE)
    torch.testing.assert_close(dual.gains()["rows"]["response"], expected)


def test_a_constraint_that_has_not_been_seen_yet_is_left_out_of_a_measurement():
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"seen": nupi.Equality(), "unseen": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, lambda: (x.square().sum(), {"seen": x.sum() - 1}), 3)
    found = dual.gains()
    assert found["seen"]["response"] > 0
    assert lagrangian.multipliers["unseen"] == 0
    assert not dual.state.get(lagrangian.get_parameter("unseen"))


def test_a_loss_without_a_gradient_measures_nothing():
    x = torch.ones(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    for _ in range(3):
        violations = {"sum": x.sum() - 1}
        lagrangian.ascend(dual, violations)
        lagrangian(torch.tensor(2.0), violations)
    assert dual.gains()["sum"]["response"].item() == 0.0
