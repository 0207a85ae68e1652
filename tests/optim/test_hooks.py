"""A bare step is quicker, but nobody who asks to watch is passed over."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

import nupi


@pytest.fixture
def stepped():
    param = torch.zeros(2)
    param.grad = torch.ones(2)
    return nupi.NuPI([param], ki=0.1, kp=1.0, init="zero")


def test_hooks_of_the_optimizer_are_called(stepped):
    calls = []
    before = stepped.register_step_pre_hook(lambda *_: calls.append("before"))
    after = stepped.register_step_post_hook(lambda *_: calls.append("after"))
    stepped.step()
    before.remove()
    after.remove()
    stepped.step()
    assert calls == ["before", "after"]
    assert stepped.param_groups[0]["params"][0].tolist() == pytest.approx([0.1 + 1.1] * 2)


def test_hooks_of_all_optimizers_are_called(stepped):
    calls = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    stepped.step()
    handle.remove()
    assert calls == [stepped]


def test_a_profiler_sees_the_step(stepped):
    with profile(activities=[ProfilerActivity.CPU]) as log:
        stepped.step()
    assert any("Optimizer.step#NuPI.step" in event.key for event in log.key_averages())


def test_a_scheduler_knows_that_the_optimizer_has_stepped(stepped):
    scheduler = torch.optim.lr_scheduler.StepLR(stepped, 1, gamma=0.5)
    stepped.step()
    scheduler.step()  # would warn, and fail here, had it not seen the step
    assert stepped.param_groups[0]["lr"] == 0.5


def test_a_scheduler_knows_that_ascend_has_stepped():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(dual, 1, gamma=0.5)
    for expected in (1.0, 1.5, 1.75):
        lagrangian.ascend(dual, {"a": torch.tensor(1.0)})
        scheduler.step()
        assert lagrangian.multipliers["a"].item() == expected


def test_a_step_that_somebody_has_wrapped_is_called_by_ascend():
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    calls, step = [], dual.step

    def wrapped(*args):
        calls.append("step")
        return step(*args)

    dual.step = wrapped
    lagrangian.ascend(dual, {"a": torch.tensor([1.0, -1.0])})
    assert calls == ["step"]
    assert lagrangian.multipliers["a"].tolist() == [1.0, 0.0]
