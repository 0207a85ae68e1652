"""Multipliers as a module: layers of a subclass, attributes beside constraints, a view that cannot be assigned to."""

import copy
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
        self.register_buffer("mean", torch.zeros(2))
        self.spread = nn.Buffer(torch.ones(2))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.plain = {"not": "registered"}

    def get_extra_state(self):
        return {"seen": getattr(self, "seen", 0)}

    def set_extra_state(self, state):
        self.seen = state["seen"]


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
    lagrangian.mean = torch.full((2,), 4.0)  # as of any module: the buffer, and not an attribute beside it
    lagrangian.seen = 9
    file = io.BytesIO()
    torch.save(lagrangian.state_dict(), file)
    file.seek(0)
    again = WithNet({"a": nupi.Equality(2), "other.b": nupi.Inequality()})
    again.load_state_dict(torch.load(file, weights_only=True))
    assert (again.net.weight == 7).all()
    assert (again.scale == 5).all()
    assert again.multipliers["other.b"].item() == 3.0
    assert again.scale.requires_grad
    assert (again.mean == 4).all()
    assert again.seen == 9
    larger = nn.ModuleDict({"lagrangian": WithNet({"a": nupi.Equality(2), "other.b": nupi.Inequality()})})
    larger.load_state_dict({f"lagrangian.{name}": value for name, value in lagrangian.state_dict().items()})
    assert (larger["lagrangian"].net.weight == 7).all()


@pytest.mark.parametrize("name", ["net.weight", "scale", "mean", "spread", "_extra_state", "a"])
def test_a_checkpoint_with_a_part_missing_is_not_taken_for_whole(name):
    lagrangian = WithNet({"a": nupi.Equality(2)})
    state = lagrangian.state_dict()
    del state[name]
    with pytest.raises(RuntimeError, match=f"{name}|multipliers for none"):
        lagrangian.load_state_dict(state)
    lagrangian.load_state_dict(state, strict=False)


@pytest.mark.parametrize("name", ["scale", "mean"])
def test_a_part_of_another_shape_is_refused_and_not_broadcast(name):
    lagrangian = WithNet({"a": nupi.Equality(2)})
    state = {**lagrangian.state_dict(), name: torch.ones(1)}
    with pytest.raises(RuntimeError, match=f"size mismatch for {name}"):
        lagrangian.load_state_dict(state)


def test_assigned_parts_keep_their_types_and_hooks_are_called_once():
    lagrangian = WithNet({"a": nupi.Equality(2)})
    state = lagrangian.state_dict()
    for name in ("scale", "mean", "a"):
        state[name] = state[name].bfloat16()
    called = []
    lagrangian.register_load_state_dict_pre_hook(lambda *_: called.append(1))
    lagrangian.load_state_dict(state, assign=True)
    assert called == [1]
    assert lagrangian.scale.dtype == lagrangian.mean.dtype == torch.bfloat16
    assert lagrangian.get_parameter("a").dtype == torch.float32  # a multiplier is never narrower
    assert [name for name, _ in lagrangian.named_parameters()][:2] == ["a", "scale"]


def test_a_layer_may_be_replaced_but_not_take_the_name_of_a_constraint():
    lagrangian = WithNet({"a": nupi.Equality(2)})
    lagrangian.net = nn.Linear(3, 1)
    assert lagrangian.net.weight.shape == (1, 3)
    lagrangian.net = None
    assert not list(lagrangian.children())
    lagrangian.scale = None
    assert [name for name, _ in lagrangian.named_parameters()] == ["a"]
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


@pytest.mark.parametrize(
    "change",
    [
        lambda view: view.update(a=torch.ones(2)),
        lambda view: view.setdefault("b", torch.ones(2)),
        lambda view: view.pop("a"),
        lambda view: view.popitem(),
        lambda view: view.clear(),
        lambda view: view.__delitem__("a"),
        lambda view: view.__ior__({"a": torch.ones(2)}),
    ],
)
def test_the_view_cannot_be_changed_in_any_way(change):
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2)})
    view = lagrangian.multipliers
    with pytest.raises(TypeError, match="would not reach the multipliers"):
        change(view)
    assert list(view) == ["a"]


def test_a_copy_of_the_view_is_the_users_own():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2, init=1.0)})
    file = io.BytesIO()
    torch.save(lagrangian.multipliers, file)
    file.seek(0)
    for kept in (copy.deepcopy(lagrangian.multipliers), torch.load(file, weights_only=True)):
        kept["a"].fill_(7.0)
        kept["b"] = torch.zeros(1)
        assert lagrangian.multipliers["a"].tolist() == [1.0, 1.0]
    assert copy.copy(lagrangian.multipliers)["a"].data_ptr() == lagrangian.get_parameter("a").data_ptr()


def test_a_checkpoint_says_on_which_side_of_the_bounds_it_is():
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality(2, upper=2.0)})
    with pytest.raises(RuntimeError, match="'g' has multipliers above its upper bound in it"):
        lagrangian.load_state_dict({"g": torch.tensor([0.5, 5.0])})
    with pytest.raises(RuntimeError, match="'g' has negative multipliers in it"):
        lagrangian.load_state_dict({"g": torch.tensor([-0.5, 1.0])})


def test_an_assigned_parameter_is_the_checkpoints_own():
    lagrangian, other = (nupi.Lagrangian({"g": nupi.Inequality(2)}) for _ in range(2))
    lagrangian.load_state_dict(other.state_dict(keep_vars=True), assign=True)
    assert lagrangian.get_parameter("g") is other.get_parameter("g")


def test_one_process_is_not_many():
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality(2)}, reduce="mean")
    assert not lagrangian.many_ranks
    numbers = torch.ones(2)
    lagrangian.sum_over_ranks(numbers)
    assert numbers.tolist() == [1.0, 1.0]
