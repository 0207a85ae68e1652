"""Multipliers as a module: layers of a subclass, attributes beside constraints, a view that cannot be assigned to."""

import io

import pytest
import torch
from torch import nn

import nupi


class WithNet(nupi.Lagrangian):
    """A Lagrangian with a layer and a parameter of its own."""

    def __init__(self, constraints):
        super().__init__(constraints)
        self.net = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(3))
        self.plain = {"not": "registered"}


def test_layers_of_a_subclass_are_registered_and_go_through_checkpoints():
    lagrangian = WithNet({"a": nupi.Equality(2), "other.b": nupi.Inequality()})
    assert {name for name, _ in lagrangian.named_parameters()} == {
        "a",
        "other.b",
        "scale",
        "net.weight",
        "net.bias",
    }
    assert lagrangian.double().net.weight.dtype == torch.float64
    assert lagrangian.scale.dtype == torch.float64
    with torch.no_grad():
        lagrangian.net.weight.fill_(7.0)
        lagrangian.scale.fill_(5.0)
        lagrangian.multipliers["other.b"].fill_(3.0)
    file = io.BytesIO()
    torch.save(lagrangian.state_dict(), file)
    file.seek(0)
    again = WithNet({"a": nupi.Equality(2), "other.b": nupi.Inequality()})
    again.load_state_dict(torch.load(file, weights_only=True))
    assert (again.net.weight == 7).all()
    assert (again.scale == 5).all()
    assert again.multipliers["other.b"].item() == 3.0
    assert again.scale.requires_grad
    larger = nn.ModuleDict({"lagrangian": WithNet({"a": nupi.Equality(2), "other.b": nupi.Inequality()})})
    larger.load_state_dict({f"lagrangian.{name}": value for name, value in lagrangian.state_dict().items()})
    assert (larger["lagrangian"].net.weight == 7).all()


def test_a_checkpoint_with_a_layer_missing_is_not_taken_for_whole():
    lagrangian = WithNet({"a": nupi.Equality(2)})
    state = lagrangian.state_dict()
    del state["net.weight"]
    with pytest.raises(RuntimeError, match=r"net\.weight"):
        lagrangian.load_state_dict(state)


def test_a_layer_may_be_replaced_but_not_take_the_name_of_a_constraint():
    lagrangian = WithNet({"a": nupi.Equality(2)})
    lagrangian.net = nn.Linear(3, 1)
    assert lagrangian.net.weight.shape == (1, 3)
    lagrangian.net = None
    assert not list(lagrangian.children())
    with pytest.raises(AttributeError, match="'a' is a constraint here"):
        lagrangian.a = nn.Linear(1, 1)
    with pytest.raises(AttributeError, match="the beginning of one's name"):
        WithNet({"net.weight": nupi.Equality(2)})


def test_assigning_to_the_view_is_refused_and_says_how_to_write():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2)})
    with pytest.raises(TypeError, match=r"multipliers\['a'\] = \.\.\. would not reach.*\.fill_\(0\.0\)"):
        lagrangian.multipliers["a"] = torch.ones(2)
    lagrangian.multipliers["a"].copy_(torch.ones(2))
    assert lagrangian.multipliers["a"].tolist() == [1.0, 1.0]
