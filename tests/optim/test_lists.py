"""Steps of many parameters share lists of tensors. A step must be the one that it would have been without them."""

import copy

import pytest
import torch

import nupi
from nupi.optim import gradients
from nupi.optim.base import DualOptimizer

DUALS = {
    "NuPI": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2),
    "gradient ascent": lambda p: nupi.NuPI(p, 0.1),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, form="positional"),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "param groups": lambda p: nupi.NuPI([{"params": p[:3]}, {"params": p[3:], "ki": 0.3}], 0.1, 1.0),
}


@pytest.fixture
def listed(monkeypatch):
    """Steps that were taken with lists, as a list that grows."""
    taken, step = [], gradients.Lists.step

    def counted(self, dual):
        done = step(self, dual)
        taken.extend([self] * done)
        return done

    monkeypatch.setattr(gradients.Lists, "step", counted)
    return taken


def steps(params, dual, first, last):
    for number in range(first, last):
        draw = torch.Generator().manual_seed(number)
        for param in params:
            param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
        dual.step()


def parameters():
    return [torch.zeros(size) for size in (3, 1, 4, 1, 5, 9)]


def run(make, change, monkeypatch, *, lists):
    with monkeypatch.context() as patch:
        if not lists:
            patch.setattr(DualOptimizer, "_expect_more", lambda *_: None)
        params = parameters()
        dual = make(params)
        steps(params, dual, 0, 5)
        change(params, dual)
        steps(params, dual, 5, 10)
    return params, dual


def assert_same(one, other):
    for mine, theirs in zip(one[0], other[0], strict=True):
        assert torch.equal(mine, theirs)
        mine_kept, their_kept = one[1].state.get(mine, {}), other[1].state.get(theirs, {})
        assert mine_kept.keys() == their_kept.keys()
        assert all(torch.equal(mine_kept[slot], their_kept[slot]) for slot in mine_kept)


@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_steps_with_lists_are_the_same_to_the_bit(make, listed, monkeypatch):
    one = run(make, lambda *_: None, monkeypatch, lists=True)
    assert len(listed) == 8  # all but the first two
    assert_same(one, run(make, lambda *_: None, monkeypatch, lists=False))
    assert len(listed) == 8


def without_gradient(params, dual):
    steps(params, dual, 20, 22)
    params[2].grad = None
    dual.step()


def sparse(params, dual):
    params[0].grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (3,), check_invariants=True)
    dual.step()


def loaded(_, dual):
    dual.load_state_dict(copy.deepcopy(dual.state_dict()))


def other_state(params, dual):
    dual.state[params[0]]["xi"] = torch.ones(3)


def swapped_state(params, dual):
    one, other = dual.state[params[1]], dual.state[params[3]]
    dual.state[params[1]], dual.state[params[3]] = other, one


def hooked(params, dual):
    def double(*_):
        params[0].grad.mul_(2)

    handle = dual.register_step_pre_hook(double)
    steps(params, dual, 20, 23)
    handle.remove()


CHANGES = {
    "a gain": lambda _, dual: dual.param_groups[0].update(kp=3.0),
    "a gain that is a tensor": lambda _, dual: dual.param_groups[0].update(ki=torch.tensor([0.2])),
    "minimize": lambda _, dual: dual.param_groups[0].update(maximize=False),
    "foreach": lambda _, dual: dual.param_groups[0].update(foreach=False),
    "a parameter without gradient": without_gradient,
    "a sparse gradient": sparse,
    "loaded": loaded,
    "cleared": lambda _, dual: dual.state.clear(),
    "other state": other_state,
    "swapped state": swapped_state,
    "data": lambda params, _: setattr(params[0], "data", torch.ones(3)),
    "dtype": lambda params, _: setattr(params[0], "data", torch.ones(3, dtype=torch.float64)),
    "narrow": lambda params, _: setattr(params[0], "data", torch.ones(3, dtype=torch.bfloat16)),
    "a parameter less": lambda _, dual: dual.param_groups[0]["params"].pop(),
    "a parameter more": lambda _, dual: dual.add_param_group({"params": [torch.zeros(2)]}),
    "a hook": hooked,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_steps_counts(change, listed, monkeypatch):
    one = run(DUALS["NuPI"], change, monkeypatch, lists=True)
    assert len(listed) >= 3
    assert_same(one, run(DUALS["NuPI"], change, monkeypatch, lists=False))


def test_a_copy_has_lists_of_its_own(listed):
    params = parameters()
    dual = nupi.NuPI(params, 0.1, 1.0)
    steps(params, dual, 0, 5)
    others, its = copy.deepcopy((params, dual))
    before = copy.deepcopy(params)
    steps(others, its, 5, 10)
    assert all(map(torch.equal, params, before))
    steps(params, dual, 5, 10)
    assert all(map(torch.equal, params, others))
    assert len({*map(id, listed)}) == 2


def test_an_optimizer_that_does_more_in_a_step_is_asked_each_time():
    class Counting(nupi.NuPI):
        count = 0

        def apply(self, works):
            self.count += 1
            super().apply(works)

    params = parameters()
    dual = Counting(params, 0.1, 1.0)
    steps(params, dual, 0, 6)
    assert dual.count == 6


def test_a_step_without_any_gradient_moves_nothing():
    params = parameters()
    dual = nupi.NuPI(params, 0.1, 1.0)
    steps(params, dual, 0, 4)
    before = copy.deepcopy((params, dual.state_dict()["state"]))
    dual.zero_grad()
    dual.step()
    torch.testing.assert_close((params, dual.state_dict()["state"]), before, rtol=0, atol=0)
