"""Torch's load hooks are honoured as torch's own optimizers honour them, and a load that fails loads nothing."""

import copy

import pytest
import torch

import nupi

OPTIMIZERS = {
    "NuPI": lambda p: nupi.NuPI(p, 0.1, 1.0),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, maximize=True),
}


def stepped(make, *errors):
    param = torch.zeros(2)
    optimizer = make([param])
    for error in errors:
        param.grad = torch.tensor(error)
        optimizer.step()
    return optimizer, param


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_pre_hook_may_unwrap_an_older_format(make):
    saved = {"wrapped": copy.deepcopy(stepped(make, [1.0, 2.0])[0].state_dict())}
    fresh, param = stepped(make)
    fresh.register_load_state_dict_pre_hook(lambda _, state_dict: state_dict["wrapped"])
    fresh.load_state_dict(saved)
    assert all(value.abs().tolist() == [1.0, 2.0] for value in fresh.state[param].values())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_a_pre_hook_writes_is_loaded(make):
    saved = stepped(make, [1.0, 2.0])[0].state_dict()

    def doubled(_, state_dict):
        state = {key: {s: 2 * v for s, v in slots.items()} for key, slots in state_dict["state"].items()}
        return {**state_dict, "state": state}

    fresh, param = stepped(make)
    fresh.register_load_state_dict_pre_hook(doubled)
    fresh.load_state_dict(saved)
    assert all(value.abs().tolist() == [2.0, 4.0] for value in fresh.state[param].values())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_a_post_hook_sets_stays(make):
    saved = stepped(make, [1.0, 2.0])[0].state_dict()
    fresh, param = stepped(make)

    def clear(optimizer):
        for slots in optimizer.state.values():
            for value in slots.values():
                value.zero_()
        optimizer.param_groups[0]["lr"] = 0.5

    fresh.register_load_state_dict_post_hook(clear)
    fresh.load_state_dict(saved)
    assert not any(value.any() for value in fresh.state[param].values())
    assert fresh.param_groups[0]["lr"] == 0.5


def test_a_post_hook_that_raises_leaves_what_was_there():
    saved = stepped(OPTIMIZERS["NuPI"], [1.0, 2.0])[0].state_dict()
    dual, param = stepped(OPTIMIZERS["NuPI"], [3.0, 3.0])
    dual.register_load_state_dict_post_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dual.load_state_dict(saved)
    assert dual.state[param]["xi"].tolist() == [3.0, 3.0]


def test_a_checkpoint_from_before_the_defaults_changed_loads_as_what_it_was():
    """Version 0.1: init="zero", form="velocity", and a mask of rows by the name "seen"."""
    saved = {
        "state": {0: {"xi": torch.tensor([0.0, 0.0]), "seen": torch.tensor([True, False])}},
        "param_groups": [
            {"lr": 1.0, "ki": 0.1, "kp": 1.0, "nu": 0.0, "init": "zero", "form": "velocity"}
            | {"maximize": True, "foreach": None, "params": [0]}
        ],
    }
    dual, param = stepped(OPTIMIZERS["NuPI"])
    dual.load_state_dict(saved)
    assert (dual.param_groups[0]["init"], dual.param_groups[0]["form"]) == ("zero", "velocity")
    param.grad = torch.ones(2)
    dual.step()
    assert param.tolist() == pytest.approx(
        [1.1, 0.1]
    )  # a second step from zero has the kick, a first one has not


def test_state_of_a_wider_checkpoint_is_loaded_in_the_width_of_the_multipliers():
    wide, narrow = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
    saved, dual = nupi.NuPI([wide], ki=0.1, kp=1.0), nupi.NuPI([narrow], ki=0.1, kp=1.0)
    wide.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
    saved.step()
    dual.load_state_dict(saved.state_dict())
    assert dual.state[narrow]["xi"].dtype == torch.float32
    assert dual.state[narrow]["xi"].tolist() == [1.0, 2.0]


def test_names_of_parameters_are_compared_where_both_sides_have_them():
    def made(*names):
        params = [torch.zeros(2) for _ in names]
        named = zip(names, params, strict=True) if all(names) else params
        return nupi.NuPI(named, ki=0.1, kp=1.0)

    saved = made("fair", "small").state_dict()
    made("fair", "small").load_state_dict(saved)
    made(None, None).load_state_dict(saved)  # it has no names
    made("fair", "small").load_state_dict(made(None, None).state_dict())  # it was saved without them
    with pytest.raises(
        ValueError, match=r"state_dict is for \['fair', 'small'\], but here are \['fair', 'large'\]"
    ):
        made("fair", "large").load_state_dict(saved)
