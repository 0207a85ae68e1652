"""What a user asks of SelfTuned: its gains, copies and checkpoints, what it refuses and what it warns of."""

import copy
import io
import math
from functools import partial

import pytest
import torch
from self_tuned_runs import quadratic, train

import nupi
from nupi.integrations.duals import make_dual


def test_a_checkpoint_goes_on_bit_for_bit():
    def fresh():
        x, primal, lagrangian, evaluate = quadratic(optimizer=lambda p: torch.optim.Adam(p, lr=0.02))
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
        return x, primal, lagrangian, evaluate, dual

    x, primal, lagrangian, evaluate, dual = fresh()
    train(primal, lagrangian, dual, evaluate, 17)
    file = io.BytesIO()
    torch.save([x.detach(), primal.state_dict(), lagrangian.state_dict(), dual.state_dict()], file)
    train(primal, lagrangian, dual, evaluate, 30)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    x2, primal2, lagrangian2, evaluate2, dual2 = fresh()
    x2.data.copy_(saved[0])
    for part, state in zip((primal2, lagrangian2, dual2), saved[1:], strict=True):
        part.load_state_dict(state)
    train(primal2, lagrangian2, dual2, evaluate2, 30)
    assert torch.equal(x, x2)
    assert torch.equal(lagrangian.multipliers["rows"], lagrangian2.multipliers["rows"])


@pytest.mark.filterwarnings("ignore:this SelfTuned cannot measure")
def test_a_copy_goes_on_with_the_response_it_knows():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    twin, its_lagrangian = copy.deepcopy((dual, lagrangian))
    assert torch.equal(next(iter(twin.gains().values()))["ki"], dual.gains()["rows"]["ki"])
    _, violations = evaluate()
    lagrangian.ascend(dual, violations)
    its_lagrangian.ascend(twin, violations)
    assert torch.equal(lagrangian.multipliers["rows"], its_lagrangian.multipliers["rows"])


def test_freeze_gives_a_nupi_with_the_gains_found():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    frozen, found = dual.freeze(), dual.gains()["rows"]
    assert isinstance(frozen, nupi.NuPI)
    (group,) = frozen.param_groups
    assert group["params"][0] is lagrangian.get_parameter("rows")
    for name in ("ki", "kp", "nu"):
        torch.testing.assert_close(group[name], found[name])
    train(primal, lagrangian, frozen, evaluate, 5)


def test_a_short_horizon_is_named_once_with_the_number_that_would_do():
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.Adam([x], lr=1e-3)
    lagrangian = nupi.Lagrangian({"far": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)

    def evaluate():
        return x.square().sum() + x.sum(), {"far": x - 1.0}

    with pytest.warns(UserWarning, match="steps=50 is shorter .* Give steps=9[0-9][0-9]") as seen:
        train(primal, lagrangian, dual, evaluate, 40)
    assert len(seen) == 1


def test_a_learning_rate_that_falls_after_the_horizon_is_no_short_horizon():
    """Warnings are errors here: the schedule's last steps are tiny, and would ask for thousands of steps."""
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.05)
    lagrangian = nupi.Lagrangian({"near": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)

    def evaluate():
        return x.square().sum() + x.sum(), {"near": x - 1.0}

    train(primal, lagrangian, dual, evaluate, 100)
    primal.param_groups[0]["lr"] = 1e-9
    with torch.no_grad():
        x.add_(1.0)  # far from met again
    train(primal, lagrangian, dual, evaluate, 60)
    assert dual.gains()["near"]["measured_at"] > 100


def test_bad_requests_are_refused():
    params = [torch.zeros(2)]
    with pytest.raises(ValueError, match=r"steps must be at least 1, but 0\.5 came"):
        nupi.SelfTuned(params, steps=0.5)
    with pytest.raises(ValueError, match="steps must be finite"):
        nupi.SelfTuned(params, steps=math.inf)
    with pytest.raises(ValueError, match="scale must lie between"):
        nupi.SelfTuned(params, steps=5, scale=0.0)
    for name in ("steps", "scale"):
        with pytest.raises(TypeError, match=f"{name} must be a number, but a tensor came; use param groups"):
            nupi.SelfTuned([{"params": params, name: torch.ones(2)}], steps=5)
    dual = nupi.SelfTuned([torch.zeros(2)], steps=5)
    dual.param_groups[0]["lr"] = -1.0
    dual.param_groups[0]["params"][0].grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"lr must lie in \[0, inf\), but -1\.0 came"):
        dual.step()
    with pytest.raises(ValueError, match=r"steps must be at least 1, but -5\.0 came"):
        nupi.SelfTuned(params, steps=-5.0)
    with pytest.raises(TypeError, match="but parameters came; give the optimizer itself"):
        nupi.SelfTuned(params, steps=5, primal=params)
    with pytest.raises(TypeError, match="primal is a Adadelta, whose response cannot be measured"):
        nupi.SelfTuned(params, steps=5, primal=torch.optim.Adadelta([torch.zeros(1, requires_grad=True)]))
    for model in (torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Linear(1, 1))):
        with pytest.raises(
            TypeError, match=r"a model came \((Linear|Sequential)\); give the optimizer that trains"
        ):
            nupi.SelfTuned(params, steps=5, primal=model)
    with pytest.raises(
        ValueError, match="primal is empty; give the optimizer of the model, or leave primal out"
    ):
        nupi.SelfTuned(params, steps=5, primal=[])
    backwards = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, maximize=True)
    with pytest.raises(ValueError, match="primal is a SGD with maximize=True"):
        nupi.SelfTuned(params, steps=5, primal=backwards)


def test_before_the_first_step_all_gains_are_zero_and_nothing_is_smoothed():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(3)})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
    ((_, found),) = dual.gains().items()
    assert found.pop("measured_at") == 0
    assert all(torch.equal(value, torch.zeros(3)) for value in found.values())


def test_averages_over_less_than_a_step_are_the_newest_number():
    param = torch.zeros(1)
    dual = nupi.SelfTuned([param], steps=1)
    for error in (1.0, 3.0):
        param.grad = torch.tensor([error])
        dual.step()
    state = dual.state[param]
    assert [state[name].item() for name in ("mean", "slow", "e_fast", "last")] == [3.0, 3.0, 3.0, 3.0]


def test_steps_that_are_longer_than_the_run_are_warned_of_by_whoever_knows_its_length():
    message = "steps=500 is longer than the run of 100 dual steps.*Give steps=25, a quarter of the run"
    with pytest.warns(UserWarning, match=message):
        nupi.minimize(
            lambda x: x.square().sum(),
            torch.zeros(2),
            equality=lambda x: x.sum() - 1,
            dual=partial(nupi.SelfTuned, steps=500),
            steps=100,
        )
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    with pytest.warns(UserWarning, match=message):
        make_dual(partial(nupi.SelfTuned, steps=500), lagrangian, 100, [])
    assert make_dual(partial(nupi.SelfTuned, steps=100), lagrangian, 100, []).param_groups[0]["steps"] == 100


@pytest.mark.filterwarnings("ignore:.*has not been called with a gradient")
def test_the_two_violations_before_a_retuning_are_noted():
    param = torch.zeros(1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    dual = nupi.SelfTuned([param], steps=64 * 10, primal=optimizer)  # a stride of ten steps
    seen = []
    for step in range(64 + 240):
        error = math.sin(step)
        param.grad = torch.tensor([error])
        before = dual.state[param]["last"].item() if step else 0.0
        dual.step()
        state, phase = dual.state[param], dual.param_groups[0]["phase"]
        if step >= 64:
            seen.append(phase)
            assert state["last"].item() == pytest.approx(before if phase == "resting" else error)
            if seen[-2:-1] == ["noting"]:
                assert state["change"].item() == pytest.approx(error - before, abs=1e-6)
    pause = [*["resting"] * 7, *["noting"] * 2]
    assert seen == [*[*pause, "watching"] * 11, *pause, "retuning"] * 2


@pytest.mark.parametrize("lr", [0.5, 2.0])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_lr_scales_what_a_step_does_and_what_gains_says(lr, kind):
    """Of two that have found the same, one of which is slowed down for a step like the others."""
    moved = {}
    for scale in (1.0, lr):
        lagrangian = nupi.Lagrangian({"c": kind(2)}).double()
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
        for error in (1.0, 0.8, 0.7):
            lagrangian.ascend(dual, {"c": torch.tensor([error, 2 * error]).double()})
        dual.param_groups[0]["lr"] = scale
        before = lagrangian.multipliers["c"].clone()
        lagrangian.ascend(dual, {"c": torch.tensor([0.6, 1.5]).double()})
        moved[scale] = lagrangian.multipliers["c"] - before
        (state,) = dual.state.values()
        (found,) = dual.gains().values()
        torch.testing.assert_close(found["ki"], scale * state["ki"])
        torch.testing.assert_close(found["kp"], scale * state["kp"])
        torch.testing.assert_close(found["nu"], 1.0 - state["weight"])
        assert (found["ki"] > 0).all()
    torch.testing.assert_close(moved[lr], lr * moved[1.0])


@pytest.mark.parametrize("lr", [0.5, 1.0])
def test_what_lies_beyond_a_bound_is_nupis_with_the_scaled_gains(lr):
    """beyond = min(u - ki e, 0) with u = theta + ki e + kp (xi_t - xi_{t-1}), and never further than kp xi_t."""
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
    for error in (1.0, 0.9, 0.8, 0.75, 0.7):
        lagrangian.ascend(dual, {"c": torch.tensor([error, 2 * error]).double()})
    dual.param_groups[0]["lr"] = lr
    (state,) = dual.state.values()
    theta, xi = lagrangian.multipliers["c"].clone(), state["xi"].clone()
    error = torch.tensor([-9.0, -7.0]).double()
    lagrangian.ascend(dual, {"c": error})
    (found,) = dual.gains().values()
    u = theta + found["ki"] * error + found["kp"] * (state["xi"] - xi)
    torch.testing.assert_close(lagrangian.multipliers["c"], u.clamp(min=0))
    without = u - found["ki"] * error
    assert (u < 0).all()
    assert (without < 0).any()
    torch.testing.assert_close(
        state["beyond"], torch.maximum(without.clamp(max=0), found["kp"] * state["xi"])
    )


def test_a_copy_that_cannot_measure_says_so_once_until_it_has_a_primal():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    twin, its_primal, its_lagrangian = copy.deepcopy((dual, primal, lagrangian))
    with pytest.warns(UserWarning, match=r"has no primal: it is a copy.*Call dual.watch") as seen:
        train(its_primal, its_lagrangian, twin, evaluate, 5)
    assert len(seen) == 1
    twin.watch(its_primal)
    train(its_primal, its_lagrangian, twin, evaluate, 5)  # and no warning, which would be an error


def test_a_checkpoint_that_is_loaded_without_a_primal_says_so():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    resumed = nupi.SelfTuned(lagrangian.parameters(), steps=40)
    resumed.load_state_dict(dual.state_dict())
    with pytest.warns(UserWarning, match="built without primal and has loaded a checkpoint"):
        train(primal, lagrangian, resumed, evaluate, 2)


def test_a_loss_that_never_comes_and_a_primal_that_never_steps_are_said_once():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)

    def descend_on_the_loss(steps):
        for _ in range(steps):
            loss, violations = evaluate()
            lagrangian.ascend(dual, violations)
            loss.backward()
            primal.step()
            primal.zero_grad()

    with pytest.warns(
        UserWarning, match=r"has not been called with a gradient.* in place of loss.back"
    ) as seen:
        descend_on_the_loss(50)
    assert len(seen) == 1

    x, old, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=old)
    with pytest.warns(UserWarning, match=r"called 256 times, and primal .SGD. has not taken a step") as seen:
        train(torch.optim.SGD([x], lr=0.05), lagrangian, dual, evaluate, 300)
    assert len(seen) == 1


def test_freezing_before_there_are_gains_is_refused():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    with pytest.raises(RuntimeError, match="no gains have been found yet"):
        dual.freeze()
    lagrangian.ascend(dual, evaluate()[1])
    with pytest.raises(RuntimeError, match="no gains have been found yet"):
        dual.freeze()


def test_a_name_that_is_not_known_yet_says_when_it_is():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    with pytest.raises(KeyError, match="names are known after the first call"):
        dual.gains()["rows"]
    train(primal, lagrangian, dual, evaluate, 2)
    with pytest.raises(KeyError, match="'row' is no constraint that this optimizer moves; it has 'rows'"):
        dual.gains()["row"]


@pytest.mark.parametrize("how", ["watch", "checkpoint"])
def test_what_was_identified_is_measured_from_the_moment_there_is_a_primal(how):
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100)
    train(primal, lagrangian, dual, evaluate, 60)
    if how == "watch":
        dual.watch(primal)
    else:
        saved, dual = dual.state_dict(), nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
        dual.load_state_dict(saved)
    train(primal, lagrangian, dual, evaluate, 100)
    found = dual.gains()["rows"]
    assert found["measured_at"] > 60
    fresh = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, fresh, evaluate, 2)
    torch.testing.assert_close(found["response"], fresh.gains()["rows"]["response"], rtol=0.5, atol=0)
    (state,) = dual.state.values()
    assert state.keys() == next(iter(fresh.state.values())).keys()
    resumed = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    resumed.load_state_dict(dual.state_dict())


def test_steps_of_the_model_are_counted_once_however_often_its_optimizer_is_watched():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    dual.watch(primal)
    dual.load_state_dict(dual.state_dict())
    for _ in range(5):
        _, violations = evaluate()
        lagrangian.ascend(dual, violations)
        for _ in range(3):
            lagrangian(*evaluate()).backward()
            primal.step()
            primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == 3
