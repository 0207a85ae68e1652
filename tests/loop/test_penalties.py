"""The augmented Lagrangian: what nuPI has to do with it, in sweeps, under a schedule, and as a penalty alone."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize as scipy_minimize

import nupi

DOUBLE = torch.float64


def quadratic(seed, size=4, rows=2):
    """min x'Ax/2 - b'x subject to Cx = d or Cx <= d."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=DOUBLE)
    matrix = root @ root.T / size + 0.5 * torch.eye(size, dtype=DOUBLE)
    linear, offset = (torch.randn(n, generator=generator, dtype=DOUBLE) for n in (size, rows))
    constraint = torch.randn(rows, size, generator=generator, dtype=DOUBLE)
    constraint = constraint / constraint.norm(dim=1, keepdim=True)
    return (lambda x: x @ matrix @ x / 2 - linear @ x), (lambda x: constraint @ x - offset)


def path(seed, kind, dual, penalty, steps, lr=0.05):
    """The primal iterates of the loop of the README."""
    objective, violation = quadratic(seed)
    lagrangian = nupi.Lagrangian({"c": kind(2)}, penalty=penalty).double()
    dual = dual(lagrangian.parameters())
    x = torch.zeros(4, dtype=DOUBLE, requires_grad=True)
    primal, seen = torch.optim.SGD([x], lr=lr), []
    for _ in range(steps):
        violations = {"c": violation(x)}
        lagrangian.ascend(dual, violations)
        lagrangian(objective(x), violations).backward()
        primal.step()
        primal.zero_grad()
        seen.append(x.detach().clone())
    return torch.stack(seen), lagrangian.multipliers["c"].clone()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), c=st.floats(0.1, 5.0), ki=st.floats(0.01, 1.0))
def test_nupi_is_gradient_ascent_on_the_augmented_lagrangian_of_equalities(seed, c, ki):
    """theta = lambda + c h, so that the model's gradient is the same at every step."""
    controller = partial(nupi.NuPI, ki=ki, kp=c, init="error")
    ours, theta = path(seed, nupi.Equality, controller, None, 40)
    ascent, multiplier = path(seed, nupi.Equality, partial(nupi.NuPI, ki=ki), c, 40)
    scale = ascent.abs().max().item()
    assert (ours - ascent).abs().max().item() <= 1e-13 * max(1.0, scale)
    _, violation = quadratic(seed)
    before_last = violation(ours[-2])  # the violation that moved the multipliers last
    torch.testing.assert_close(theta, multiplier + c * before_last, rtol=1e-9, atol=1e-9 * max(1.0, scale))


def test_on_equalities_the_two_differ_by_rounding_alone():
    """The page says 2e-16 for the median and 1e-15 for the maximum."""
    apart = []
    for seed in range(20):
        for c, ki in ((0.5, 0.1), (2.0, 0.3), (5.0, 1.0)):
            ours, _ = path(seed, nupi.Equality, partial(nupi.NuPI, ki=ki, kp=c, init="error"), None, 40)
            ascent, _ = path(seed, nupi.Equality, partial(nupi.NuPI, ki=ki), c, 40)
            apart.append(((ours - ascent).abs().max() / ascent.abs().max()).item())
    assert max(apart) < 1.5e-15
    assert sorted(apart)[30] < 3e-16


def test_a_penalty_and_kp_add_up_on_equalities():
    both, _ = path(0, nupi.Equality, partial(nupi.NuPI, ki=0.2, kp=0.5, init="error"), 1.5, 40)
    alone, _ = path(0, nupi.Equality, partial(nupi.NuPI, ki=0.2), 2.0, 40)
    torch.testing.assert_close(both, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_for_inequalities_the_stable_point_is_shared_and_the_path_is_not(seed):
    controller = partial(nupi.NuPI, ki=0.3, kp=1.0, init="error")
    ours, theta = path(seed, nupi.Inequality, controller, None, 1500)
    ascent, multiplier = path(seed, nupi.Inequality, partial(nupi.NuPI, ki=0.3), 1.0, 1500)
    objective, violation = quadratic(seed)
    known = scipy_minimize(
        lambda x: objective(torch.from_numpy(x)).item(),
        [0.0] * 4,
        constraints={"type": "ineq", "fun": lambda x: -violation(torch.from_numpy(x)).numpy()},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    for found in (ours[-1], ascent[-1]):
        torch.testing.assert_close(found, torch.from_numpy(known.x), rtol=0, atol=1e-5)
    torch.testing.assert_close(theta, multiplier, rtol=0, atol=1e-8)
    apart = (ours - ascent).abs().max().item()
    assert (apart > 1e-6) == (seed == 1)  # there a multiplier comes to its bound on the way


@pytest.mark.parametrize("seed", range(3))
def test_multipliers_that_stay_at_zero_leave_the_quadratic_penalty_alone(seed):
    """Without `ascend`, what is minimized is f + c/2 sum of h^2 + c/2 sum of max(0, g)^2."""
    c = 3.0
    objective, violation = quadratic(seed)
    lagrangian = nupi.Lagrangian({"h": nupi.Equality(2), "g": nupi.Inequality(2)}, penalty=c).double()
    x = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE, requires_grad=True)
    h, g = violation(x), violation(x) + torch.tensor([-4.0, 4.0])
    value = lagrangian(objective(x), {"h": h, "g": g})
    expected = objective(x) + c / 2 * h.square().sum() + c / 2 * g.clamp(min=0).square().sum()
    torch.testing.assert_close(value, expected)
    (found,), (wanted,) = (torch.autograd.grad(each, x, retain_graph=True) for each in (value, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dual", [nupi.NuPI, partial(torch.optim.SGD, lr=0.1, maximize=True)])
def test_a_sweep_has_penalties_and_ends_where_minimize_ends(dual):
    objective, violation = quadratic(3)
    start = torch.zeros(4, dtype=DOUBLE)
    problem = {
        "equality": {"h": lambda x: x[0] - 2 * x[1] - 0.5},
        "inequality": {"g": violation},
        "constraints": {"band": (nupi.Band((), tolerance=0.1), lambda x: x.sum() - 1)},
        "primal": partial(torch.optim.SGD, lr=0.03),
        "steps": 150,
    }
    penalties = [None, 0.5, {"g": 2.0}, {"h": 1.0, "band": 3.0}]
    gains = {"ki": [0.2]} if dual is nupi.NuPI else {"lr": [0.2]}
    found = nupi.sweep(objective, start, dual=dual, grid={"penalty": penalties, **gains}, **problem)
    fixed = nupi.sweep(objective, start, dual=dual, grid=gains, penalty=0.5, **problem)
    for row, penalty in enumerate(penalties):
        options = {name: values[0] for name, values in gains.items()}
        one = nupi.minimize(objective, start, dual=partial(dual, **options), penalty=penalty, **problem)
        torch.testing.assert_close(found.x[row, 0], one.x, rtol=1e-10, atol=1e-10)
        for name, multiplier in one.multipliers.items():
            torch.testing.assert_close(found.multipliers[name][row, 0], multiplier, rtol=1e-9, atol=1e-9)
        for part in ("stationarity", "feasibility", "complementarity"):
            torch.testing.assert_close(
                getattr(found.residuals, part)[row, 0], getattr(one.residuals, part), rtol=1e-7, atol=1e-9
            )
    torch.testing.assert_close(fixed.x[0], found.x[1, 0], rtol=1e-10, atol=1e-10)
    ends = found.x[:, 0]
    assert all(not torch.allclose(ends[i], ends[j]) for i in range(4) for j in range(i))


def test_a_sweep_refuses_a_penalty_that_is_none(tmp_path):
    objective, violation = quadratic(0)
    sweep = partial(nupi.sweep, objective, torch.zeros(4, dtype=DOUBLE), inequality=violation, steps=5)
    with pytest.raises(ValueError, match=r"penalty of 'inequality' must be above 0"):
        sweep(grid={"ki": [0.1], "penalty": [1.0, -1.0]})
    with pytest.raises(ValueError, match="penalty names 'other'"):
        sweep(grid={"ki": [0.1]}, penalty={"other": 1.0})
    sweep(grid={"ki": [0.1]}, penalty=1.0, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(grid={"ki": [0.1]}, penalty=2.0, checkpoint=tmp_path)


# --- the schedule ---


def watched(**options):
    lagrangian = nupi.Lagrangian(
        {"g": nupi.Inequality(2), "h": nupi.Equality(), "free": nupi.Inequality()},
        penalty={"g": 1.0, "h": 2.0},
    )
    return lagrangian, nupi.PenaltySchedule(lagrangian, **options)


@settings(max_examples=60, deadline=None)
@given(
    looks=st.lists(st.floats(-2.0, 2.0, width=32), min_size=1, max_size=12),
    factor=st.floats(1.5, 20.0),
    decrease=st.floats(0.1, 1.0),
    tolerance=st.sampled_from([0.0, 0.1]),
)
def test_the_schedule_follows_its_rule(looks, factor, decrease, tolerance):
    lagrangian, schedule = watched(factor=factor, decrease=decrease, tolerance=tolerance, upper=500.0)
    expected = {"g": 1.0, "h": 2.0}
    before = {}
    for look in looks:
        schedule.step({"g": torch.tensor([look, -1.0]), "h": torch.tensor(look)})
        for name, size in (("g", max(0.0, look)), ("h", abs(look))):
            if name in before and size > tolerance and size > decrease * before[name]:
                expected[name] = min(500.0, factor * expected[name])
            before[name] = size
    assert lagrangian.penalties == pytest.approx(expected)


def test_every_kind_of_violation_is_looked_at():
    ten = torch.zeros(1)
    for violation, raised in (
        (nupi.Indexed(torch.tensor([0.5]), torch.tensor([1])), True),
        (nupi.Averaged(torch.tensor([3.0, -1.0]), torch.tensor([4.0, 0.0])), True),
        (nupi.Averaged(torch.tensor([-3.0, 9.0]), torch.tensor([4.0, 0.0])), False),
        (nupi.Measured(torch.tensor([1.0, 1.0]), torch.tensor([-1.0, -1.0])), False),
        (nupi.Measured(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, -1.0])), True),
    ):
        lagrangian, schedule = watched()
        schedule.step({"g": violation, "free": ten})
        schedule.step({"g": violation, "free": ten + 1})
        assert lagrangian.penalties == {"g": 10.0 if raised else 1.0, "h": 2.0}, violation


def test_the_schedule_solves_what_a_fixed_penalty_alone_leaves_violated():
    """min -x^2/2 + x^4/100 s.t. x = 1: the Lagrangian is concave there, and needs a penalty above 0.88."""

    def solve(*, scheduled):
        lagrangian = nupi.Lagrangian({"h": nupi.Equality()}, penalty=0.1).double()
        dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
        schedule = nupi.PenaltySchedule(lagrangian)
        x = torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
        primal = torch.optim.SGD([x], lr=0.02)
        for step in range(2000):
            violations = {"h": x - 1}
            lagrangian.ascend(dual, violations)
            lagrangian(-x.square() / 2 + x**4 / 100, violations).backward()
            primal.step()
            primal.zero_grad()
            if step % 200 == 199:
                schedule.step(violations) if scheduled else None
        return abs(x.item() - 1), lagrangian.penalties["h"]

    violated, _ = solve(scheduled=False)
    met, penalty = solve(scheduled=True)
    assert violated > 0.1
    assert met < 1e-6
    assert 0.88 < penalty <= 100


def test_the_schedule_goes_on_from_a_checkpoint(tmp_path):
    looks = (1.0, 0.4, 0.3, 0.1, 0.09)
    whole, one = watched()
    for look in looks:
        one.step({"g": torch.tensor([look, 0.0])})
    _, first = watched()
    for look in looks[:3]:
        first.step({"g": torch.tensor([look, 0.0])})
    torch.save(first.state_dict(), tmp_path / "schedule.pt")
    resumed, second = watched()
    second.load_state_dict(torch.load(tmp_path / "schedule.pt", weights_only=True))
    for look in looks[3:]:
        second.step({"g": torch.tensor([look, 0.0])})
    assert resumed.penalties == whole.penalties == {"g": 100.0, "h": 2.0}
    with pytest.raises(ValueError, match="state lacks last, penalties"):
        second.load_state_dict({})


def test_the_schedule_refuses_and_changes_nothing():
    lagrangian, schedule = watched()
    schedule.step({"g": torch.tensor([0.5, 0.1])})
    before = schedule.state_dict()
    with pytest.raises(nupi.NonFiniteViolationError, match="'g' are not finite"):
        schedule.step({"h": torch.tensor(5.0), "g": torch.tensor([math.nan, 0.1])})
    with pytest.raises(ValueError, match="has shape"):
        schedule.step({"h": torch.tensor(5.0), "g": torch.tensor([1.0])})
    assert schedule.state_dict() == before
    with pytest.raises(ValueError, match="no penalty to begin with"):
        nupi.PenaltySchedule(nupi.Lagrangian({"g": nupi.Inequality()}))
    for name, value in (("factor", 1.0), ("decrease", 0.0), ("tolerance", -1.0), ("upper", math.inf)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            nupi.PenaltySchedule(lagrangian, **{name: value})


def _ranks_look(rank_is_bad):
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(), "b": nupi.Inequality()}, penalty=1.0, reduce="mean")
    schedule = nupi.PenaltySchedule(lagrangian)
    rank, said = torch.distributed.get_rank(), ""
    for look in (1.0, 0.9):
        mine = {"a": torch.tensor(look if rank == 0 else -1.0)}
        if rank == 1 and rank_is_bad:
            mine = {"a": torch.tensor(math.nan)}
        try:
            schedule.step(mine)
        except Exception as error:  # noqa: BLE001
            said = type(error).__name__
    return lagrangian.penalties, said


def test_all_ranks_keep_the_same_penalties(ranks):
    for penalties, said in ranks.run(_ranks_look, False, world=2):
        assert (penalties, said) == ({"a": 10.0, "b": 1.0}, "")
    one, other = ranks.run(_ranks_look, True, world=2)
    assert one == ({"a": 1.0, "b": 1.0}, "PeerRefusedError")
    assert other == ({"a": 1.0, "b": 1.0}, "NonFiniteViolationError")
