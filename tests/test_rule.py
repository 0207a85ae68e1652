import oracles
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from nupi import rule
from nupi.constraints import Bounds

number = st.floats(-3, 3, width=64)
errors = st.lists(st.floats(-2, 2), min_size=1, max_size=12)
gains = st.fixed_dictionaries({"ki": st.floats(0, 2), "kp": number, "nu": st.floats(-0.95, 0.95)})
inits = st.sampled_from(rule.INITS)


def trajectory(form, seen, theta0, ki, kp, nu, init, bounds=None):
    """The rule's own functions, driven as the optimizer, the solver and the sweep drive them."""
    theta = torch.full((1,), theta0, dtype=torch.float64)
    xi, integral = torch.empty_like(theta), torch.empty_like(theta) if form == "positional" else None
    beyond = torch.zeros_like(theta)
    path = []
    for t, e in enumerate(seen):
        error = torch.full_like(theta, e)
        weight = rule.open_(theta, xi, integral, error, kp, 1.0 - nu, init) if t == 0 else 1.0 - nu
        if integral is not None:
            rule.positional_(theta, xi, integral, error, ki, kp, weight, bounds)
        elif form == "velocity" or bounds is None:
            rule.velocity_(theta, xi, error, ki, kp, weight)
        else:
            rule.conditional_(theta, xi, beyond, error, ki, kp, weight, bounds)
        if bounds is not None:
            bounds.project_(theta, error)
        path.append(theta.item())
    return path


@given(errors, st.floats(0, 3), gains, inits, st.sampled_from(rule.FORMS), st.sampled_from([None, 0.5, 3.0]))
def test_all_forms_follow_their_formula_at_the_bounds(seen, theta0, values, init, form, upper):
    theta0 = min(theta0, upper or theta0)
    high, raws = {} if upper is None else {"high": upper}, []
    expected = oracles.nupi(seen, theta0, init=init, form=form, low=0.0, raws=raws, **high, **values)
    # On the bound to the last bit, rounding decides whether the positional form brings its integral back.
    assume(all(min(abs(raw), abs(raw - (upper or 0.0))) > 1e-9 for raw in raws))
    found = trajectory(form, seen, theta0, init=init, bounds=Bounds(0.0, upper), **values)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def held(form, kp=5.0, nu=0.0, steps=20_000):
    """The mean multiplier of a constraint that is satisfied by three standard deviations of its noise."""
    draw = torch.Generator().manual_seed(0)
    seen = (-0.3 + 0.1 * torch.randn(steps, generator=draw)).tolist()
    path = trajectory(form, seen, 0.0, 0.03, kp, nu, "bumpless", Bounds())
    return sum(path[steps // 2 :]) / (steps // 2)


def test_the_velocity_form_rectifies_noise_at_zero_and_the_conditional_form_does_not():
    assert held("velocity", steps=4_000) == pytest.approx(0.97, abs=0.1)
    assert held("conditional", steps=4_000) < 0.03
    assert held("conditional", nu=0.9, steps=4_000) < 0.001


def test_a_conditional_multiplier_goes_all_the_way_to_zero():
    """A step that would cross the bound ends on it, and does not stop short of it."""
    path = trajectory("conditional", [1.0, *[-0.7] * 9], 0.0, 0.1, 0.5, 0.0, "bumpless", Bounds())
    assert path[-1] == 0.0


@given(errors, number, gains, inits, st.sampled_from(rule.FORMS))
def test_both_forms_follow_the_papers_recursion_from_every_start(seen, theta0, values, init, form):
    expected = oracles.nupi(seen, theta0, init=init, **values)
    assert trajectory(form, seen, theta0, init=init, **values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.floats(-2, 2), gains)
def test_first_steps_are_the_four_of_the_table(e, values):
    ki, kp, nu = values["ki"], values["kp"], values["nu"]
    expected = {"zero": ki * e, "error": (ki + kp) * e, "ema": (ki + kp * (1 - nu)) * e, "bumpless": ki * e}
    for init in rule.INITS:
        assert trajectory("velocity", [e], 0.0, init=init, **values) == pytest.approx(
            [expected[init]], abs=1e-12
        )


def test_a_constant_error_is_kicked_at_the_second_step_from_zero_but_not_from_bumpless():
    ki, kp, nu = 0.1, 2.0, 0.25
    zero, bumpless = (
        trajectory("velocity", [1.0, 1.0], 0.0, ki, kp, nu, init) for init in ("zero", "bumpless")
    )
    assert zero[1] - zero[0] == pytest.approx(ki + kp * (1 - nu))
    assert bumpless[1] - bumpless[0] == pytest.approx(ki)


def test_broadcast_gains_are_so_many_controllers():
    ki = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    kp = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    nu = torch.tensor(0.3, dtype=torch.float64)
    seen = torch.randn(6, 2, 3, dtype=torch.float64)
    theta, xi = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for t, e in enumerate(seen):
        weight = rule.open_(theta, xi, None, e, kp, 1.0 - nu, "ema") if t == 0 else 1.0 - nu
        rule.velocity_(theta, xi, e, ki, kp, weight)
    for i in range(2):
        for j in range(3):
            expected = oracles.nupi(seen[:, i, j].tolist(), 0.0, ki[i].item(), kp[j].item(), 0.3, "ema")[-1]
            assert theta[i, j].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["positional", "conditional"])
def test_anti_windup_frees_a_multiplier_that_has_long_been_at_a_bound(form):
    """Long satisfied, the raw integral would sink to -10; long violated, it would rise to 10 above the bound."""
    path = trajectory(form, [*[-1.0] * 100, 1.0], 0.0, 0.1, 1.0, 0.0, "bumpless", Bounds())
    assert path[-2] == 0.0
    assert path[-1] >= 0.1
    path = trajectory(form, [*[1.0] * 100, -1.0], 0.0, 0.1, 1.0, 0.0, "bumpless", Bounds(0.0, 2.0))
    assert path[-2] == 2.0
    assert path[-1] <= 1.9


@pytest.mark.parametrize("form", rule.FORMS)
def test_a_step_allocates_nothing_that_grows(form):
    theta, xi, integral, e = (torch.randn(100_000) for _ in range(4))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        if form == "velocity":
            rule.velocity_(theta, xi, e, 0.1, 1.0, 0.5)
        elif form == "positional":
            rule.positional_(theta, xi, integral, e, 0.1, 1.0, 0.5)
        else:
            rule.conditional_(theta, xi, integral, e, 0.1, 1.0, 0.5, Bounds())
    assert max(event.self_cpu_memory_usage for event in log.events()) < 1_000


def test_an_unknown_start_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'cold'.*zero, error, ema, bumpless"):
        rule.opening("cold", 0.0)
