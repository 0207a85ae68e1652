"""SelfTuned where the library uses it: refused steps, minimize, sweep, the monitor, bands, hard measures, rows."""

import copy
from functools import partial

import pytest
import torch

import nupi
from nupi.optim.base import SAFE
from nupi.optim.retuning import between_retunings

WIDE = torch.float64


def problem(kind=nupi.Inequality, steps=40, lr=0.05, **options):
    x = torch.zeros(3, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=lr)
    lagrangian = nupi.Lagrangian({"sum": kind(**options)}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=steps, primal=primal)
    return x, primal, lagrangian, dual


def train(x, primal, lagrangian, dual, steps, violation=lambda x: 1 - x.sum()):
    for _ in range(steps):
        violations = {"sum": violation(x)}
        lagrangian.ascend(dual, violations)
        lagrangian(x.square().sum() / 2, violations).backward()
        primal.step()
        primal.zero_grad()


def test_a_refused_step_changes_nothing_and_the_next_is_what_it_would_have_been():
    parts = problem(steps=400)
    train(*parts, 70)  # so far that gains are found every sixth step alone
    _, _, lagrangian, dual = parts
    twin, its_lagrangian = copy.deepcopy((dual, lagrangian))
    for _ in range(7):
        before = copy.deepcopy(dual.state_dict())
        with pytest.raises(nupi.NonFiniteViolationError):
            lagrangian.ascend(dual, {"sum": torch.tensor(float("nan"), dtype=WIDE)})
        hook = dual.register_step_post_hook(lambda *_: 1 / 0)  # the step has been taken by then
        with pytest.raises(ZeroDivisionError):
            lagrangian.ascend(dual, {"sum": torch.tensor(0.5, dtype=WIDE)})
        hook.remove()
        after = dual.state_dict()
        assert before["param_groups"] == after["param_groups"]
        for slot, value in before["state"][0].items():
            assert torch.equal(value, after["state"][0][slot]), slot
        e = torch.randn((), dtype=WIDE)
        lagrangian.ascend(dual, {"sum": e})
        its_lagrangian.ascend(twin, {"sum": e})
        assert torch.equal(lagrangian.multipliers["sum"], its_lagrangian.multipliers["sum"])


def test_gains_stay_between_retunings_and_what_is_at_rest_is_not_written():
    parts = problem(steps=640)
    train(*parts, 64)
    _, _, lagrangian, dual = parts
    state = dual.state[lagrangian.get_parameter("sum")]
    changed, ages = [], []
    for _ in range(240):
        before = {slot: value.clone() for slot, value in state.items()}
        left_alone = dual.untouched(some_rows=False)
        lagrangian.ascend(dual, {"sum": torch.randn((), dtype=WIDE)})
        written = {slot for slot, value in state.items() if not torch.equal(value, before[slot])}
        assert not written & left_alone
        changed.append("ki" in written)
        ages.append(state["age"].item())
    assert changed == ([False] * 119 + [True]) * 2
    assert ages == [64 + 10 * (step // 10) for step in range(1, 241)]


def test_minimize_gives_it_the_optimizer_and_a_quarter_of_the_steps():
    target = torch.tensor([3.0, 4.0], dtype=WIDE)
    for dual in (nupi.SelfTuned, partial(nupi.SelfTuned, steps=100)):
        solution = nupi.minimize(
            lambda x: (x - target).square().sum(),
            torch.zeros(2, dtype=WIDE),
            inequality=lambda x: x.norm() - 1,
            dual=dual,
            steps=600,
        )
        torch.testing.assert_close(solution.x, target / 5, rtol=0, atol=1e-4)
        assert float(solution.multipliers["inequality"]) == pytest.approx(8.0, abs=1e-2)


def test_a_sweep_has_the_horizon_as_an_axis():
    arguments = (lambda x: (x - 2).square().sum(), torch.zeros(2, dtype=WIDE))
    found = nupi.sweep(
        *arguments,
        inequality=lambda x: x.sum() - 1,
        dual=nupi.SelfTuned,
        grid={"steps": [50.0, 100.0]},
        steps=400,
    )
    for column, steps in enumerate((50.0, 100.0)):
        alone = nupi.minimize(
            *arguments,
            inequality=lambda x: x.sum() - 1,
            dual=lambda params, steps=steps: nupi.SelfTuned(params, steps),
            steps=400,
        )
        torch.testing.assert_close(found.multipliers["inequality"][column], alone.multipliers["inequality"])


def test_the_monitor_records_what_was_found():
    parts = problem()
    logged = []
    nupi.Monitor(parts[2], parts[3], log=lambda numbers, _: logged.append(numbers))
    train(*parts, 30)
    assert logged[-1]["nupi/sum/kp"] == pytest.approx(parts[3].gains()["sum"]["kp"].item())


def test_a_band_is_entered_and_its_multiplier_holds_it_there():
    parts = problem(kind=partial(nupi.Band, tolerance=0.1), steps=50)
    train(*parts, 400, violation=lambda x: x.sum() - 1)
    assert float(parts[0].sum().detach()) == pytest.approx(0.9, abs=1e-3)
    assert (dual_response := parts[3].gains()["sum"]["response"]).shape == (1, 2)
    assert (dual_response > 0).all()


def test_a_hard_measure_moves_the_multiplier_and_the_soft_one_is_measured():
    parts = problem(steps=50)
    train(
        *parts,
        400,
        violation=lambda x: nupi.Measured(soft=2 * (1 - x.sum()), hard=(1 - x.sum()).detach()),
    )
    # J = -2 for each of three: b = lr * 12.
    torch.testing.assert_close(parts[3].gains()["sum"]["response"], torch.tensor([0.05 * 12], dtype=WIDE))
    assert float(parts[0].sum().detach()) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("penalty", [None, 1.0])
def test_with_a_penalty_it_reaches_the_same_point(penalty):
    x = torch.zeros(3, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.05)
    lagrangian = nupi.Lagrangian({"sum": nupi.Inequality()}, penalty=penalty).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)
    train(x, primal, lagrangian, dual, 400)
    torch.testing.assert_close(x.detach(), torch.full((3,), 1 / 3, dtype=WIDE), rtol=0, atol=1e-3)


@pytest.mark.filterwarnings("ignore:steps=100 is shorter")
def test_the_multiplier_of_a_constraint_that_cannot_be_met_does_not_run_away():
    """A mean of sigmoids that is to be 1.5: its gradient vanishes, and so would every gain that follows it."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    rows = torch.randn(64, 4)
    primal = torch.optim.Adam(model.parameters(), lr=0.02)
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    path = []
    for _ in range(400):
        out = model(rows)
        violations = {"rate": 1.5 - out.sigmoid().mean()}
        lagrangian.ascend(dual, violations)
        lagrangian(out.square().mean(), violations).backward()
        primal.step()
        primal.zero_grad()
        path.append(lagrangian.multipliers["rate"].item())
    # `steps` is 100. A gain that followed the response would grow a hundredfold in that.
    second, third, last = path[199] - path[99], path[299] - path[199], path[399] - path[299]
    assert third < second
    assert last < third
    assert path[-1] < 400


def test_a_row_that_comes_late_starts_with_what_is_known_of_the_others():
    torch.manual_seed(0)
    x = torch.zeros(400, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"rows": nupi.Inequality(400)}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)
    for _ in range(5):
        some = torch.randperm(100)[:20]
        violations = {"rows": nupi.Indexed(1 - x[some], some)}
        lagrangian.ascend(dual, violations)
        lagrangian(x.square().sum() / 2, violations).backward()
        primal.step()
        primal.zero_grad()
    late = torch.tensor([300])
    lagrangian.ascend(dual, {"rows": nupi.Indexed(torch.ones(1, dtype=WIDE), late)})
    assert lagrangian.multipliers["rows"][300] > 0
    assert lagrangian.multipliers["rows"][301] == 0


def test_gains_that_have_become_very_large_are_known_to_be():
    """Nothing moves this violation: the response that is identified falls, and the gains grow beyond what is safe."""
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, scale=1e9, lr=1e-12)
    large = []
    for _ in range(100):
        lagrangian.ascend(dual, {"c": torch.tensor(1.0)})
        (state,) = dual.state.values()
        large.append(any(bool((value.abs() > SAFE).any()) for value in state.values()))
        assert dual.may_overflow or not large[-1]
    assert not large[10]
    assert large[-1]


@pytest.mark.parametrize(
    ("stride", "measured", "steps"), [(1, True, 1), (2, True, 24), (4, True, 48), (4, False, 4)]
)
def test_a_response_that_is_measured_is_retuned_after_several_watchings(stride, measured, steps):
    assert between_retunings({"stride": stride, "measured": measured}) == steps
