"""Checkpoints of model, primal, Lagrangian and dual: older ones load, those of another problem change nothing."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import nupi
from nupi.constraints import Band, Bounds, Constraint, Equality, Inequality

DUALS = {
    "NuPI": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.5),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, form="positional"),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
}


def problem(make=DUALS["NuPI"], size=3, name="fair"):
    torch.manual_seed(0)
    model = nn.Linear(2, size)
    lagrangian = nupi.Lagrangian({name: nupi.Equality(size), "small": nupi.Inequality()})
    return {
        "model": model,
        "primal": torch.optim.Adam(model.parameters(), 0.01),
        "lagrangian": lagrangian,
        "dual": make(lagrangian.parameters()),
    }


def train(parts, steps, seed=0, name="fair"):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        out = parts["model"](torch.randn(4, 2, generator=draw))
        violations = {name: out.mean(0), "small": out.square().mean() - 0.1}
        parts["lagrangian"].ascend(parts["dual"], violations)
        parts["primal"].zero_grad()
        parts["lagrangian"](out.sum(), violations).backward()
        parts["primal"].step()


def saved(parts):
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def flat(value):
    if isinstance(value, dict):
        return [item for key in sorted(value, key=str) for item in flat(value[key])]
    return [item for each in value for item in flat(each)] if isinstance(value, list) else [value]


def assert_equal(left, right):
    for one, other in zip(flat(left), flat(right), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_a_checkpoint_from_before_an_option_was_added_goes_on_with_its_default(make):
    parts = problem(make)
    train(parts, 4)
    old = saved(parts)
    optional = {"init", "form", "foreach", "one_sided"} & parts["dual"].defaults.keys()
    assert optional
    for group in old["dual"]["param_groups"]:
        for option in optional:
            del group[option]
    again = problem(make)
    for name, part in again.items():
        part.load_state_dict(old[name])
    train(parts, 4, seed=1)
    train(again, 4, seed=1)
    assert_equal(saved(parts), saved(again))


def test_a_pickle_from_before_reduce_was_added_still_works():
    lagrangian = problem()["lagrangian"]
    for newer in ("reduce", "group"):
        del lagrangian.__dict__[newer]
    old = pickle.loads(pickle.dumps(lagrangian))
    dual = DUALS["NuPI"](old.parameters())
    old.ascend(dual, {"fair": torch.ones(3)})
    assert old(torch.zeros(()), {"fair": torch.ones(3)}).item() == pytest.approx(0.3)


@pytest.mark.parametrize("kind", [Band, Bounds, Constraint, Equality, Inequality])
def test_a_pickle_from_before_constraints_had_files_of_their_own_still_works(kind):
    assert pickle.loads(f"cnupi.constraints\n{kind.__name__}\n.".encode()) is kind


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"name": "fare"}, "multipliers for 'fare', 'small', but the constraints here are 'fair', 'small'"),
        ({"size": 4}, r"'fair' has shape \(4,\) in it and \(3,\) here"),
    ],
)
def test_a_checkpoint_of_another_problem_is_refused_by_name_and_shape_and_changes_nothing(other, message):
    theirs = problem(**other)
    train(theirs, 3, name=other.get("name", "fair"))
    checkpoint = saved(theirs)
    parts = problem()
    train(parts, 3)
    before = copy.deepcopy(saved(parts))
    with pytest.raises(RuntimeError, match=message):
        parts["lagrangian"].load_state_dict(checkpoint["lagrangian"])
    if "size" in other:
        with pytest.raises(ValueError, match=r"'xi' of shape \(4,\) for parameter 0, whose shape is \(3,\)"):
            parts["dual"].load_state_dict(checkpoint["dual"])
    assert_equal(before, saved(parts))
    train(parts, 1)


def test_a_dual_of_fewer_multipliers_is_refused_and_changes_nothing():
    parts = problem()
    train(parts, 3)
    before = saved(parts)
    fewer = nupi.NuPI([parts["lagrangian"].get_parameter("fair")], 0.1, 1.0)
    with pytest.raises(ValueError, match=r"param groups of \[1\] parameters.*nothing was loaded"):
        parts["dual"].load_state_dict(fewer.state_dict())
    assert_equal(before, saved(parts))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_state_that_is_not_finite_is_refused_and_changes_nothing(make, bad):
    parts = problem(make)
    train(parts, 3)
    before = copy.deepcopy(saved(parts))
    for slot in before["dual"]["state"][1]:
        spoilt = copy.deepcopy(before["dual"])
        spoilt["state"][0] = {name: value + 1 for name, value in spoilt["state"][0].items()}
        spoilt["state"][1][slot][0] = bad
        with pytest.raises(ValueError, match=f"'{slot}' for parameter 1 .*not finite.*nothing was loaded"):
            parts["dual"].load_state_dict(spoilt)
        assert_equal(before, saved(parts))


def kinds(kind, **more):
    return nupi.Lagrangian({"fair": kind(3, init=0.5, **more), "small": nupi.Inequality()})


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        (nupi.Inequality, nupi.Equality, "'fair' is an equality in it and an inequality here"),
        (nupi.Equality, nupi.Inequality, "'fair' is an inequality in it and an equality here"),
    ],
)
def test_multipliers_of_another_kind_are_refused_whatever_their_sign(here, there, message):
    lagrangian, theirs = kinds(here), kinds(there)
    with torch.no_grad():
        theirs.multipliers["small"].fill_(9.0)
    with pytest.raises(RuntimeError, match=message):
        lagrangian.load_state_dict(saved({"it": theirs})["it"])
    assert lagrangian.multipliers["small"].item() == 0
    lagrangian.load_state_dict(saved({"it": kinds(here)})["it"])


def test_a_checkpoint_from_before_kinds_were_noted_loads():
    old = saved({"it": kinds(nupi.Inequality, restart=True)})["it"]
    assert list(old) == ["fair", "small"], "a state dict is the multipliers by name"
    del old._metadata[""]["kinds"]
    for each in (old, dict(old)):
        lagrangian = kinds(nupi.Inequality)
        with torch.no_grad():
            lagrangian.multipliers["fair"].zero_()
        lagrangian.load_state_dict(each)
        assert lagrangian.multipliers["fair"].tolist() == [0.5] * 3
    with torch.no_grad():
        old["fair"].fill_(-1.0)
    with pytest.raises(
        RuntimeError, match="'fair' has negative multipliers in it, but is an inequality here"
    ):
        kinds(nupi.Inequality).load_state_dict(dict(old))


class Learner(nn.Module):
    """A larger module as the page on training has it: the Lagrangian comes first."""

    def __init__(self, kind):
        super().__init__()
        self.lagrangian = kinds(kind)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_a_larger_module_that_begins_with_a_refused_lagrangian_is_not_loaded_at_all():
    theirs, learner = Learner(nupi.Equality), Learner(nupi.Inequality)
    before = copy.deepcopy(saved({"it": learner}))
    with pytest.raises(RuntimeError, match=r"'fair' is an equality in it.*what was registered before it"):
        learner.load_state_dict(saved({"it": theirs})["it"])
    assert_equal(before, saved({"it": learner}))
    mine = Learner(nupi.Inequality)
    learner.load_state_dict(saved({"it": mine})["it"])
    assert_equal(saved({"it": mine}), saved({"it": learner}))
