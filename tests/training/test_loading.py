"""A Lagrangian is loaded as any module is: in part, by assignment, from the meta device, through hooks, by DCP."""

import copy

import pytest
import torch
from torch import nn

import nupi


class Learner(nn.Module):
    """A model and its constraints in one module, as Lightning has them."""

    def __init__(self, *names, start=0.0):
        super().__init__()
        names = names or ("a.b", "c")
        self.lagrangian = nupi.Lagrangian({name: nupi.Inequality(2, init=start) for name in names})
        self.net = nn.Linear(2, 2)


def numbers(learner):
    return {name: value.tolist() for name, value in learner.state_dict().items()}


def test_pretrained_weights_load_into_a_module_that_holds_a_lagrangian():
    learner, pretrained = Learner(start=3.0), Learner()
    weights = {k: v for k, v in pretrained.state_dict().items() if k.startswith("net")}
    result = learner.load_state_dict(weights, strict=False)
    assert result.missing_keys == ["lagrangian.a.b", "lagrangian.c"]
    assert not result.unexpected_keys
    assert torch.equal(learner.net.weight, pretrained.net.weight)
    assert learner.lagrangian.multipliers["c"].tolist() == [3.0, 3.0]
    with pytest.raises(
        RuntimeError, match=r'Missing key\(s\) in state_dict: "lagrangian.a.b", "lagrangian.c"'
    ):
        learner.load_state_dict(weights)


def test_constraints_that_the_module_has_not_are_unexpected():
    learner, other = Learner("a.b", "c"), Learner("a.b", "d.e", start=2.0)
    result = learner.load_state_dict(other.state_dict(), strict=False)
    assert result.missing_keys == ["lagrangian.c"]
    assert result.unexpected_keys == ["lagrangian.d.e"]
    assert learner.lagrangian.multipliers["a.b"].tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "lagrangian.d.e"'):
        learner.load_state_dict(other.state_dict())


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_there_but_does_not_fit_is_refused_however_lenient_the_load(strict):
    for wrong in (torch.ones(3), torch.tensor([1.0, -1.0]), torch.tensor([1.0, torch.nan]), [1.0, 2.0]):
        learner = Learner()
        before = copy.deepcopy(numbers(learner))
        with pytest.raises(RuntimeError, match=r"Lagrangian: 'c' .*nothing was loaded"):
            learner.load_state_dict({**Learner().state_dict(), "lagrangian.c": wrong}, strict=strict)
        assert numbers(learner) == before


def test_a_bare_lagrangian_may_be_loaded_in_part():
    lagrangian = Learner().lagrangian
    result = lagrangian.load_state_dict({"c": torch.ones(2), "x.y": torch.ones(4)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["a.b"], ["x.y"])
    assert lagrangian.multipliers["c"].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match=r"it has multipliers for 'c', but .*nothing was loaded"):
        lagrangian.load_state_dict({"c": torch.zeros(2)})
    assert lagrangian.multipliers["c"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("build", ["inside", "moved"])
def test_a_problem_on_the_meta_device_takes_a_checkpoint_by_assignment(build):
    if build == "inside":
        with torch.device("meta"):
            learner = Learner(start=1.0)
    else:
        learner = Learner().to("meta")
    assert all(m.is_meta for m in learner.lagrangian.multipliers.values())
    saved = Learner(start=0.5).state_dict()
    saved["lagrangian.c"] = torch.full((2,), 4.0, dtype=torch.bfloat16)
    learner.load_state_dict(saved, assign=True)
    multipliers = learner.lagrangian.multipliers
    assert [multipliers[name].tolist() for name in ("a.b", "c")] == [[0.5] * 2, [4.0] * 2]
    assert {m.dtype for m in multipliers.values()} == {torch.float32}
    assert not any(p.requires_grad for p in learner.lagrangian.parameters())
    dual = nupi.NuPI(learner.lagrangian.parameters(), ki=1.0)
    learner.lagrangian.ascend(dual, {"c": torch.ones(2)})
    assert learner.lagrangian.multipliers["c"].tolist() == [5.0, 5.0]
    learner.lagrangian.check()


def test_a_checkpoint_that_was_assigned_once_is_copied_by_the_next_load():
    saved, lagrangian = Learner(start=0.5).lagrangian.state_dict(), Learner().lagrangian
    Learner().lagrangian.load_state_dict(saved, assign=True)
    held = list(lagrangian.parameters())
    lagrangian.load_state_dict(saved)
    assert all(one is other for one, other in zip(held, lagrangian.parameters(), strict=True))
    assert [parameter.tolist() for parameter in held] == [[0.5] * 2] * 2


def test_what_cannot_be_loaded_into_the_meta_device_is_said():
    lagrangian = Learner("c").lagrangian.to("meta")
    with pytest.warns(UserWarning, match=r"'c' are on the meta device.*assign=True.*to_empty"):
        lagrangian.load_state_dict(Learner("c").lagrangian.state_dict())


def test_memory_that_was_never_written_reports_no_refusal():
    lagrangian = Learner().lagrangian.to("meta").to_empty(device="cpu")
    lagrangian._buffers["_refused"].fill_(True)  # what to_empty might have left, of its own accord
    lagrangian.load_state_dict(Learner().lagrangian.state_dict())
    assert not lagrangian._buffers["_refused"].any()
    assert not lagrangian.to("meta").to_empty(device="cpu")._buffers["_refused"].any()


def test_a_refusal_that_nobody_has_heard_of_outlives_a_load():
    torch._dynamo.reset()
    lagrangian = Learner().lagrangian
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    ascend = torch.compile(lagrangian.ascend, backend="eager")
    ascend(dual, {"c": torch.tensor([1.0, torch.nan])})
    lagrangian.load_state_dict(lagrangian.state_dict())
    with pytest.raises(nupi.NonFiniteViolationError, match="'c'"):
        lagrangian.check()


def test_hooks_may_rename_what_is_loaded():
    lagrangian = Learner().lagrangian

    def rename(_module, state_dict, prefix, *_):
        state_dict[f"{prefix}c"] = state_dict.pop(f"{prefix}old")

    lagrangian.register_load_state_dict_pre_hook(rename)
    lagrangian.load_state_dict({"a.b": torch.zeros(2), "old": torch.ones(2)})
    assert lagrangian.multipliers["c"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("trainable", [True, False])
def test_an_assigned_multiplier_moves_if_the_one_before_it_did(trainable):
    """A checkpoint may hold parameters themselves, frozen or not: what counts is how the multiplier was here."""
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    next(lagrangian.parameters()).requires_grad_(trainable)
    saved = {
        name: torch.nn.Parameter(value.clone(), requires_grad=not trainable)
        for name, value in nupi.Lagrangian({"c": nupi.Inequality(init=2.0)}).state_dict().items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    state = {**nupi.Lagrangian({"c": nupi.Inequality()}).state_dict(), **saved}
    lagrangian.load_state_dict(state, assign=True)
    assert lagrangian.multipliers["c"].item() == 2.0
    assert next(lagrangian.parameters()).requires_grad == trainable
