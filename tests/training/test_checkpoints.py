"""Checkpoints of model, primal, Lagrangian and dual: older ones load, those of another problem change nothing."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import nupi

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
