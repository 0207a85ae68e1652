"""A step like the last one is taken without looking everything up again. It must be the step that would have been."""

import copy
import pickle
from types import MappingProxyType

import pytest
import torch
from problems import assert_unchanged, problem, snapshot

import nupi
from nupi.ascent import many_groups, repeat
from nupi.constraints import Bounds

DUALS = {
    "conditional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2),
    "velocity": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, init="zero", form="velocity"),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, form="positional", foreach=False),
    "ascent": lambda p: nupi.NuPI(p, 0.1),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "self-tuned": lambda p: nupi.SelfTuned(p, 640),
}


def given(step, lagrangian):
    draw = torch.Generator().manual_seed(step)
    dtype = lagrangian.get_parameter("fair").dtype
    return {
        "fair": torch.randn(3, generator=draw).to(dtype),
        "small": torch.randn((), generator=draw).to(dtype),  # a scalar for a single constraint
    }


def steps(lagrangian, dual, first, last):
    for step in range(first, last):
        lagrangian.ascend(dual, given(step, lagrangian))


@pytest.fixture(params=["one by one", "joined"], autouse=True)
def joins(request, monkeypatch):
    """Whether even two groups are joined, as many are."""
    if request.param == "joined":
        monkeypatch.setattr(many_groups, "MANY", 2)
    return request.param == "joined"


@pytest.fixture
def repeated(monkeypatch, joins):
    """How many steps were taken as repeats, as a list that grows."""
    taken = []
    for kind in (many_groups.ManyGroups, repeat.Repeat) if joins else (repeat.Repeat,):
        monkeypatch.setattr(kind, "_move", counted(kind._move, taken))
    return taken


def counted(move, taken):
    def move_and_count(self, errors):
        move(self, errors)
        taken.append(type(self))

    return move_and_count


def never(monkeypatch):
    monkeypatch.setattr(nupi.Lagrangian, "_expect_more", lambda *_: None)


def assert_same(one, other):
    (left, its), (right, others) = snapshot(*one), snapshot(*other)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert its["param_groups"] == others["param_groups"]
    for mine, theirs in zip(its["state"].values(), others["state"].values(), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[slot], theirs[slot]) for slot in mine)


@pytest.mark.parametrize("name", DUALS)
def test_repeated_steps_are_the_same_to_the_bit(name, repeated, joins, monkeypatch):
    runs, make = [], DUALS[name]
    for repeats in (True, False):
        if not repeats:
            never(monkeypatch)
        lagrangian, _ = problem()
        dual = make(lagrangian.parameters())
        steps(lagrangian, dual, 0, 100)
        runs.append((lagrangian, dual))
    assert len(repeated) > 20
    # These two move each multiplier by itself: one was told to, the other has gains for each.
    joined_here = joins and name not in ("positional", "self-tuned")
    assert {*repeated} == {many_groups.ManyGroups if joined_here else repeat.Repeat}
    assert_same(*runs)


def new_data(lagrangian, _):
    theta = lagrangian.get_parameter("fair")
    theta.data = theta.data + 1


def narrow_data(lagrangian, _):
    for theta in lagrangian.parameters():
        theta.data = theta.data.bfloat16()


def new_bounds(lagrangian, _):
    lagrangian.constraints["small"].bounds = Bounds(0.0, 0.05)


def new_constraint(lagrangian, _):
    lagrangian.constraints["fair"] = nupi.Inequality(3)


def loaded(_, dual):
    dual.load_state_dict(copy.deepcopy(dual.state_dict()))
    next(iter(dual.state.values()))["xi"].add_(1.0)


def cleared(_, dual):
    dual.state.clear()


def hooked(_, dual):
    def double(optimizer, *_):
        optimizer.param_groups[0]["params"][0].grad.mul_(2)

    dual.register_step_pre_hook(double)


def scheduled(lagrangian, dual):
    scheduler = torch.optim.lr_scheduler.StepLR(dual, 1, 0.5)
    for step in range(40, 45):
        lagrangian.ascend(dual, given(step, lagrangian))
        scheduler.step()


def another_dual(lagrangian, _):
    steps(lagrangian, nupi.NuPI(lagrangian.parameters(), 0.3), 50, 53)


def fewer(lagrangian, dual):
    lagrangian.ascend(dual, {"small": torch.tensor([0.5])})


def tensor_gain(_, dual):
    dual.param_groups[0]["ki"] = torch.tensor([0.2])


class Learned(nupi.Equality):
    """A constraint with a level that is trained with the model."""

    def __init__(self, size):
        super().__init__(size)
        self.level = torch.tensor(0.3, requires_grad=True)

    def errors(self, violation):
        return violation - self.level


def learned(lagrangian, _):
    lagrangian.constraints["fair"] = Learned(3)


CHANGES = {
    "kp": lambda _, dual: dual.param_groups[0].update(kp=3.0),
    "a gain that is a tensor": tensor_gain,
    "lr": lambda _, dual: dual.param_groups[0].update(lr=0.5),
    "foreach": lambda _, dual: dual.param_groups[0].update(foreach=False),
    "form": lambda _, dual: dual.param_groups[0].update(form="velocity"),
    "form with other state": lambda _, dual: dual.param_groups[0].update(form="positional"),
    "dtype": lambda lagrangian, _: lagrangian.double(),
    "narrow data": narrow_data,
    "data": new_data,
    "values": lambda lagrangian, _: lagrangian.get_parameter("small").fill_(2.0),
    "bounds": new_bounds,
    "constraint": new_constraint,
    "constraint with a parameter": learned,
    "loaded": loaded,
    "cleared": cleared,
    "hook": hooked,
    "scheduler": scheduled,
    "another dual": another_dual,
    "fewer constraints": fewer,
    "another mapping": lambda lagrangian, dual: lagrangian.ascend(
        dual, MappingProxyType(given(60, lagrangian))
    ),
    "indexed": lambda lagrangian, dual: lagrangian.ascend(
        dual, {"fair": nupi.Indexed(torch.ones(1), torch.tensor([1]))}
    ),
    "another dtype": lambda lagrangian, dual: lagrangian.ascend(
        dual, {name: each.double() for name, each in given(61, lagrangian).items()}
    ),
    "multiplier as violation": lambda lagrangian, dual: lagrangian.ascend(
        dual, {"fair": lagrangian.multipliers["fair"], "small": torch.ones(1)}
    ),
    "and with a gradient": lambda lagrangian, dual: lagrangian.ascend(
        dual, {"fair": lagrangian.multipliers["fair"].detach().requires_grad_(), "small": torch.ones(1)}
    ),
    "a new group": lambda _, dual: dual.add_param_group({"params": [torch.zeros(2)], "ki": 0.5}),
    "inference mode": lambda lagrangian, dual: torch.inference_mode()(steps)(lagrangian, dual, 70, 73),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_steps_counts(change, repeated, monkeypatch):
    runs = []
    for repeats in (True, False):
        if not repeats:
            assert len(repeated) >= 3
            never(monkeypatch)
        lagrangian, dual = problem()
        steps(lagrangian, dual, 0, 5)
        change(lagrangian, dual)
        steps(lagrangian, dual, 5, 10)
        runs.append((lagrangian, dual))
    assert_same(*runs)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"fair": torch.tensor([1.0, torch.nan, 0.0]), "small": torch.ones(1)}, nupi.NonFiniteViolationError),
        ({"fair": torch.tensor([1.0, torch.inf, 0.0]), "small": torch.ones(1)}, nupi.NonFiniteViolationError),
        ({"fair": torch.ones(2), "small": torch.ones(1)}, ValueError),
        ({"fair": torch.tensor(1.0), "small": torch.ones(1)}, ValueError),
        ({"fair": torch.ones(3), "small": torch.ones(1, 1)}, ValueError),
        ({"fair": torch.ones(3), "unknown": torch.ones(1)}, KeyError),
        ({"fair": torch.ones(3, dtype=torch.int64), "small": torch.ones(1)}, TypeError),
        ({"fair": torch.ones(3).to_sparse(), "small": torch.ones(1)}, TypeError),
        ({"fair": 1.0, "small": torch.ones(1)}, TypeError),
        (["fair"], TypeError),
    ],
)
def test_bad_input_is_refused_as_at_the_first_step(bad, error, repeated):
    lagrangian, dual = problem()
    steps(lagrangian, dual, 0, 5)
    assert repeated
    before = snapshot(lagrangian, dual)
    with pytest.raises(error):
        lagrangian.ascend(dual, bad)
    assert_unchanged(before, lagrangian, dual)


def test_a_bad_gain_is_refused():
    lagrangian, dual = problem()
    steps(lagrangian, dual, 0, 5)
    before = snapshot(lagrangian, dual)
    dual.param_groups[0]["ki"] = float("nan")
    with pytest.raises(ValueError, match="ki"):
        steps(lagrangian, dual, 5, 6)
    assert_unchanged(before, lagrangian, dual)


@pytest.mark.parametrize("make", [DUALS["positional"], DUALS["self-tuned"]], ids=["positional", "self-tuned"])
def test_an_interrupt_in_a_repeated_step_undoes_it(make, repeated, monkeypatch):
    lagrangian, _ = problem()
    dual = make(lagrangian.parameters())
    steps(lagrangian, dual, 0, 70)
    count = len(repeated)
    before, groups = snapshot(lagrangian, dual), copy.deepcopy(dual.state_dict()["param_groups"])
    project = Bounds.project_

    def interrupted(*args):
        project(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bounds, "project_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps(lagrangian, dual, 70, 71)
    assert_unchanged(before, lagrangian, dual)
    assert dual.state_dict()["param_groups"] == groups
    steps(lagrangian, dual, 70, 71)
    assert len(repeated) == count + 1


def test_an_interrupt_in_a_step_of_joined_groups_leaves_no_trace(monkeypatch):
    names = [f"group{i}" for i in range(many_groups.MANY)]
    lagrangian = nupi.Lagrangian({name: nupi.Inequality(4) for name in names})
    dual = nupi.NuPI(lagrangian.parameters(), 0.1, 1.0)
    violations = {name: torch.randn(4, requires_grad=True) for name in names}
    for _ in range(5):
        lagrangian.ascend(dual, violations)
    assert isinstance(lagrangian._repeat, many_groups.ManyGroups)
    before, project = snapshot(lagrangian, dual), Bounds.project_

    def interrupted(*args):
        project(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bounds, "project_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lagrangian.ascend(dual, violations)
    assert_unchanged(before, lagrangian, dual)


class Normalized(nupi.NuPI):
    """Each group moves by a step of length ki: what one constraint does depends on the others of its group."""

    @staticmethod
    def update(theta, state, e, gains, options, bounds, *, first):  # noqa: ARG004
        for each, error in zip(theta, e, strict=True):
            each.add_(error / error.norm(), alpha=gains["ki"])


def test_groups_are_not_joined_where_the_update_looks_at_a_whole_group():
    names = [f"group{i}" for i in range(many_groups.MANY)]
    lagrangian = nupi.Lagrangian({name: nupi.Equality(4) for name in names})
    dual = Normalized(lagrangian.parameters(), 0.1)
    for _ in range(6):
        lagrangian.ascend(dual, {name: torch.full((4,), 1.0 + i) for i, name in enumerate(names)})
    for theta in lagrangian.parameters():
        torch.testing.assert_close(theta, torch.full((4,), 6 * 0.1 / 2))


def test_the_optimizer_that_wants_to_see_losses_gets_them_again_after_another_one():
    lagrangian, _ = problem()
    dual = nupi.SelfTuned(lagrangian.parameters(), 640)
    steps(lagrangian, dual, 0, 70)
    steps(lagrangian, nupi.NuPI(lagrangian.parameters(), 0.1), 70, 73)
    steps(lagrangian, dual, 73, 74)
    assert lagrangian._observers == (dual,)


def test_listeners_hear_of_repeated_steps(repeated):
    lagrangian, dual = problem()
    heard = []
    lagrangian.listen(lambda ascent: heard.append({move.name: move.error.clone() for move in ascent.moves}))
    steps(lagrangian, dual, 0, 6)
    assert len(repeated) >= 3
    assert len(heard) == 6
    for step, each in enumerate(heard):
        wanted = given(step, lagrangian)
        assert torch.equal(each["fair"], wanted["fair"])
        assert torch.equal(each["small"], wanted["small"].reshape(1))


def test_a_scheduler_hears_of_a_repeated_step():
    lagrangian, dual = problem()
    steps(lagrangian, dual, 0, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(dual, 10)
    dual._opt_called = False
    steps(lagrangian, dual, 5, 6)
    scheduler.step()  # warns, which is an error here, if no step of the optimizer came before it


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_has_steps_of_its_own(copied):
    lagrangian, dual = problem()
    steps(lagrangian, dual, 0, 5)
    other, its = copied((lagrangian, dual))
    before = snapshot(lagrangian, dual)
    steps(other, its, 5, 10)
    assert_unchanged(before, lagrangian, dual)
    steps(lagrangian, dual, 5, 10)
    assert_same((lagrangian, dual), (other, its))


def test_steps_on_numbers_that_may_overflow_are_not_repeated(repeated):
    lagrangian, dual = problem()
    steps(lagrangian, dual, 0, 5)
    count = len(repeated)
    lagrangian.ascend(dual, {"fair": torch.full((3,), 1e11), "small": torch.ones(1)})
    assert len(repeated) == count
    dual.param_groups[0]["kp"] = 4.0
    with pytest.raises(nupi.NonFiniteMultiplierError):
        lagrangian.ascend(dual, {"fair": torch.full((3,), 3e38), "small": torch.ones(1)})
    dual.param_groups[0]["ki"] = 1e11
    steps(lagrangian, dual, 5, 8)
    assert len(repeated) == count


def test_steps_on_some_rows_prepare_none_of_the_whole_group():
    """Their cost is the rows', and a copy of all multipliers would be the group's."""
    lagrangian = nupi.Lagrangian({"each": nupi.Inequality(1000)})
    dual = nupi.NuPI(lagrangian.parameters(), 0.1)
    for _ in range(4):
        lagrangian.ascend(dual, {"each": nupi.Indexed(torch.ones(2), torch.tensor([3, 5]))})
    assert lagrangian._repeat is None
    assert "_spare" not in dual.__dict__
