"""Multipliers from a module: the dense case to the bit, a problem with a known answer, ranks, and refusals."""

import io
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nupi

DOUBLE = torch.float64


def linear(inputs, *, bias=False):
    module = nn.Linear(inputs, 1, bias=bias)
    for param in module.parameters():
        nn.init.zeros_(param)
    return module


DUALS = {
    "nupi": lambda p: nupi.NuPI(p, ki=0.3, kp=0.8, nu=0.5),
    "positional": lambda p: nupi.NuPI(p, ki=0.3, kp=0.8, form="positional"),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.2, 0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, maximize=True),
}


@pytest.mark.parametrize("dual", DUALS)
@pytest.mark.parametrize("penalty", [None, 2.0])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_one_hot_features_and_a_linear_module_are_dense_multipliers(kind, penalty, dual):
    rows, eye = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), torch.eye(5)
    dense = nupi.Lagrangian({"c": kind(5)}, penalty=penalty)
    implicit = nupi.Implicit(linear(5), kind(), project="parameters")
    ours = nupi.Lagrangian({"c": implicit}, penalty=penalty)
    duals = [DUALS[dual](each.parameters()) for each in (dense, ours)]
    for row in rows:
        x, y = row.clone().requires_grad_(), row.clone().requires_grad_()
        dense.ascend(duals[0], {"c": x})
        ours.ascend(duals[1], {"c": nupi.Featured(y, eye)})
        assert torch.equal(implicit.multipliers(ours.multipliers["c"], eye), dense.multipliers["c"])
        dense(torch.zeros(()), {"c": x.square() - 1}).backward()
        ours(torch.zeros(()), {"c": nupi.Featured(y.square() - 1, eye)}).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert bool((dense.multipliers["c"] != 0).any())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_batches_of_constraints_are_indexed_ones_under_gradient_ascent(seed):
    rng, eye = torch.Generator().manual_seed(seed), torch.eye(6)
    dense = nupi.Lagrangian({"c": nupi.Inequality(6)})
    ours = nupi.Lagrangian({"c": nupi.Implicit(linear(6), project="parameters")})
    duals = [nupi.NuPI(each.parameters(), ki=0.3) for each in (dense, ours)]
    for _ in range(10):
        which, values = torch.randint(6, (4,), generator=rng), torch.randn(4, generator=rng)
        dense.ascend(duals[0], {"c": nupi.Indexed(values, which)})
        ours.ascend(duals[1], {"c": nupi.Featured(values, eye[which])})
        torch.testing.assert_close(ours.multipliers["c"], dense.multipliers["c"])


@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_many_constraints_with_few_parameters_have_the_known_multipliers(kind):
    """min |x - t|^2 / 2 s.t. x <= t - F w: x = t - F w, and lambda = F w, which is linear in the features."""
    rng = torch.Generator().manual_seed(0)
    features = torch.rand(500, 3, generator=rng, dtype=DOUBLE)
    weights = torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)
    target = torch.randn(500, generator=rng, dtype=DOUBLE)
    implicit = nupi.Implicit(linear(3).double(), kind())
    lagrangian = nupi.Lagrangian({"c": implicit})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.01, kp=0.02)
    x = torch.zeros(500, dtype=DOUBLE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.3)
    for _ in range(800):
        which = torch.randperm(500, generator=rng)[:100]  # what a batch has seen
        violation = nupi.Featured((x - target + features @ weights)[which], features[which])
        lagrangian.ascend(dual, {"c": violation})
        whole = nupi.Featured(x - target + features @ weights, features)
        lagrangian((x - target).square().sum() / 2, {"c": whole}).backward()
        primal.step()
        primal.zero_grad()
    torch.testing.assert_close(lagrangian.multipliers["c"], weights, rtol=1e-4, atol=1e-4)
    found = implicit.multipliers(lagrangian.multipliers["c"], features)
    torch.testing.assert_close(found, features @ weights, rtol=1e-4, atol=1e-4)


def test_outputs_stay_within_their_bounds_and_do_not_wind_up():
    module = linear(2, bias=True)
    implicit = nupi.Implicit(module, nupi.Inequality(upper=1.5))
    lagrangian = nupi.Lagrangian({"c": implicit})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.4)
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for _ in range(50):
        lagrangian.ascend(dual, {"c": nupi.Featured(torch.tensor([-1.0, 1.0]), features)})
        theta = implicit.multipliers(lagrangian.multipliers["c"], features)
        assert bool(((theta >= 0) & (theta <= 1.5)).all())
    assert theta.tolist() == [0.0, 1.5]
    raw = implicit.outputs(lagrangian.multipliers["c"], features)
    assert -1.0 < raw[0] <= 0 < 1.5 <= raw[1] < 3.0  # at most a step beyond
    lagrangian.ascend(dual, {"c": nupi.Featured(torch.tensor([1.0, -1.0]), features)})
    lagrangian.ascend(dual, {"c": nupi.Featured(torch.tensor([1.0, -1.0]), features)})
    theta = implicit.multipliers(lagrangian.multipliers["c"], features)
    assert theta[0] > 0
    assert theta[1] < 1.5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1), nn.Softplus())


def test_the_error_of_a_network_is_the_gradient_of_the_lagrangian_in_its_parameters():
    module = network()
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(module)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    values, features = torch.tensor([1.0, -2.0]), torch.randn(2, 3)
    plain = deepcopy(module).eval()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, maximize=True)
    for _ in range(3):
        optimizer.zero_grad()
        (plain(features).squeeze(1) * values).sum().backward()
        optimizer.step()
        lagrangian.ascend(dual, {"c": nupi.Featured(values, features)})
    flat = torch.cat([param.detach().reshape(-1) for param in plain.parameters()])
    torch.testing.assert_close(lagrangian.multipliers["c"], flat)
    value = lagrangian(torch.tensor(0.5), {"c": nupi.Featured(values, features)})
    torch.testing.assert_close(value, 0.5 + (plain(features).squeeze(1) * values).sum().detach())


def test_it_is_saved_and_loaded_and_copied_like_any_group():
    values, features = torch.tensor([1.0, -2.0]), torch.randn(2, 3)
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(network())})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    lagrangian.ascend(dual, {"c": nupi.Featured(values, features)})
    file = io.BytesIO()
    torch.save([lagrangian.state_dict(), dual.state_dict()], file)
    file.seek(0)
    other = nupi.Lagrangian({"c": nupi.Implicit(network())})
    other_dual = nupi.NuPI(other.parameters(), ki=0.1, kp=1.0)
    for part, state in zip((other, other_dual), torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    copied = deepcopy(lagrangian)
    assert torch.equal(copied.multipliers["c"], lagrangian.multipliers["c"])
    for each, moved in ((lagrangian, dual), (other, other_dual)):
        each.ascend(moved, {"c": nupi.Featured(values, features)})
    assert torch.equal(other.multipliers["c"], lagrangian.multipliers["c"])
    with pytest.raises(RuntimeError, match="is an implicit constraint in it and an inequality here"):
        nupi.Lagrangian({"c": nupi.Inequality(21)}).load_state_dict(lagrangian.state_dict())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_and_nothing_has_moved(bad):
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(linear(2)), "d": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    lagrangian.ascend(dual, {"c": nupi.Featured(torch.ones(2), torch.eye(2)), "d": torch.ones(1)})
    before = deepcopy((lagrangian.state_dict(), dual.state_dict()["state"]))
    for values, features in (
        (torch.tensor([1.0, bad]), torch.eye(2)),
        (torch.ones(2), torch.eye(2) * bad),
    ):
        with pytest.raises(nupi.NonFiniteViolationError, match="'c'"):
            lagrangian.ascend(dual, {"d": torch.ones(1), "c": nupi.Featured(values, features)})
    after = (lagrangian.state_dict(), dual.state_dict()["state"])
    assert all(torch.equal(after[0][name], before[0][name]) for name in before[0])
    assert all(
        torch.equal(after[1][number][slot], tensor)
        for number, slots in before[1].items()
        for slot, tensor in slots.items()
    )


def test_schedules_and_best_look_at_the_constraints_and_not_at_the_parameters():
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(linear(2))}, penalty=1.0)
    schedule = nupi.PenaltySchedule(lagrangian)
    features = torch.eye(2) * 100
    schedule.step({"c": nupi.Featured(torch.tensor([0.4, -9.0]), features)})
    schedule.step({"c": nupi.Featured(torch.tensor([0.3, -9.0]), features)})
    assert lagrangian.penalties == {"c": 10.0}
    schedule.step({"c": nupi.Featured(torch.tensor([-0.3, -9.0]), features)})
    schedule.step({"c": nupi.Featured(torch.empty(0), torch.empty(0, 2))})
    assert lagrangian.penalties == {"c": 10.0}
    best = nupi.Best(lagrangian, 0.1)
    best.see(nn.Linear(1, 1), 1.0, {"c": nupi.Featured(torch.tensor([0.05, -3.0]), features)})
    assert best.violation == pytest.approx(0.05)
    assert best.is_feasible


def _ranks_see(world):
    torch.manual_seed(0)
    values, features = torch.randn(4), torch.randn(4, 3)
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(network())}, reduce="mean" if world > 1 else None)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    rank = torch.distributed.get_rank() if world > 1 else 0
    mine = slice(rank, None, world)
    for _ in range(3):
        lagrangian.ascend(dual, {"c": nupi.Featured(values[mine], features[mine])})
    x = torch.ones(4, requires_grad=True)
    lagrangian(torch.zeros(()), {"c": nupi.Featured((values * x)[mine], features[mine])}).backward()
    return lagrangian.multipliers["c"].clone(), x.grad


def test_ranks_move_the_parameters_of_one_process(ranks):
    alone, gradient = _ranks_see(1)
    answers = ranks.run(_ranks_see, 2, world=2)
    assert torch.equal(answers[0][0], answers[1][0])
    torch.testing.assert_close(answers[0][0], alone)
    torch.testing.assert_close((answers[0][1] + answers[1][1]) / 2, gradient)  # as DDP averages


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: nupi.Implicit(linear(2), nupi.Band(tolerance=0.1)), TypeError, "kind must be Equality"),
        (lambda: nupi.Implicit(linear(2), nupi.Inequality(restart=True)), TypeError, "kind must be"),
        (lambda: nupi.Implicit(nn.ReLU()), TypeError, "module with parameters"),
        (lambda: nupi.Implicit(linear(2), project="all"), ValueError, "project must be"),
        (
            lambda: nupi.Implicit(linear(2), nupi.Inequality(upper=1.0), project="parameters"),
            ValueError,
            "cannot keep multipliers below upper",
        ),
        (lambda: nupi.Implicit(nn.Linear(9, 1), project="parameters"), ValueError, "is negative"),
        (lambda: nupi.Featured([1.0], torch.eye(1)), TypeError, "two tensors"),
        (lambda: nupi.Featured(torch.ones(2), torch.eye(3)), ValueError, "one row of features"),
    ],
)
def test_what_cannot_be_made(make, error, says):
    torch.manual_seed(0)
    with pytest.raises(error, match=says):
        make()


def test_what_a_step_refuses():
    lagrangian = nupi.Lagrangian({"c": nupi.Implicit(linear(2)), "d": nupi.Inequality(2)})
    wide = nupi.Lagrangian({"c": nupi.Implicit(nn.Linear(2, 3))})
    featured = nupi.Featured(torch.ones(2), torch.eye(2))
    for problem, violations, error, says in (
        (lagrangian, {"c": torch.ones(2)}, TypeError, "came without any"),
        (lagrangian, {"c": torch.ones(5)}, ValueError, r"give nupi.Featured\(values, features\)"),
        (lagrangian, {"c": nupi.Indexed(torch.ones(1), torch.tensor([0]))}, TypeError, "came without any"),
        (lagrangian, {"d": featured}, TypeError, "make it nupi.Implicit"),
        (wide, {"c": featured}, ValueError, "one multiplier a row"),
    ):
        dual = nupi.NuPI(problem.parameters(), ki=0.1)
        with pytest.raises(error, match=says):
            problem.ascend(dual, violations)
        with pytest.raises(error, match=says):
            problem(torch.zeros(()), violations)
