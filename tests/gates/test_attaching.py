"""Gating by name: what is chosen, what replaces it, and that a refusal leaves the model as it was."""

import copy

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from nupi import gates


def chain():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 2),
    )


class Branches(nn.Module):
    """Two blocks whose registration order says nothing about the order of the calls."""

    def __init__(self):
        super().__init__()
        self.norm_b, self.norm_a = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.conv_a, self.conv_b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.norm_b(self.conv_b(self.norm_a(self.conv_a(x))))


class DependsOnValues(Branches):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def kinds(model):
    return [type(module).__name__ for module in model]


def test_a_norm_takes_the_gate_of_the_layer_before_it():
    model = chain()
    weights = list(model.parameters())
    assert gates.attach(model, ["0", "3", "6"], place="before", droprate_init=0.3, clamp=3.0) == [
        "0",
        "3",
        "6",
    ]
    expected = ["Conv2d", "GatedBatchNorm2d", "ReLU", "GatedConv2d", "ReLU", "Flatten", "GatedLinear"]
    assert kinds(model) == expected
    assert model[1].place == "before"
    assert (model[1].gate.droprate_init, model[1].gate.clamp) == (0.3, 3.0)
    assert {id(p) for p in gates.weight_parameters(model)} == {id(p) for p in weights}
    assert [p.shape for p in gates.gate_parameters(model)] == [(8,), (4,), (2,)]


def test_gates_on_weights_stay_in_the_layer():
    model = chain()
    gates.attach(model, "*", unit="weight")
    assert kinds(model)[:4] == ["GatedConv2d", "BatchNorm2d", "ReLU", "GatedConv2d"]
    assert model[3].gate.shape == model[3].weight.shape


def test_the_call_order_finds_the_norm():
    model = Branches()
    gates.attach(model, "conv_?")
    assert {name: layer.gate for name, layer in gates.gated_layers(model).items()} == {
        "conv_b": model.norm_b.gate,
        "conv_a": model.norm_a.gate,
    }


def test_a_second_call_adds_gates():
    model = chain()
    gates.attach(model, "0")
    gates.attach(model, "3")
    assert list(gates.gated_layers(model)) == ["0", "3"]


def test_a_model_that_cannot_be_traced_needs_the_norms_named():
    model = DependsOnValues()
    with pytest.raises(ValueError, match=r"torch.fx cannot trace DependsOnValues.*norms="):
        gates.attach(model, "conv_a")
    gates.attach(model, "conv_*", norms={"conv_a": "norm_a", "conv_b": None})
    assert type(model.norm_a) is gates.GatedBatchNorm2d
    assert type(model.conv_b) is gates.GatedConv2d
    assert type(model.norm_b) is nn.BatchNorm2d


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.a(x)) + self.norm(self.b(x))


class Forked(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4, bias=False)

    def forward(self, x):
        return self.norm(self.depthwise(nn.functional.relu(self.expand(x))))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(7)

    def forward(self, x):
        return self.norm(torch.cat([x, self.conv(x)], 1))


class FunctionalNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return nn.functional.group_norm(nn.functional.relu(self.conv(x)), 2)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.encoder(x)


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "names", "options", "message"),
    [
        (chain(), "7", {}, "names has '7', which names nothing.*such as"),
        (chain(), ["0", "1"], {}, "names has '1', which names a BatchNorm2d"),
        (chain(), "0", {"unit": "row"}, "unit='row'"),
        (chain(), "0", {"place": "inside"}, "place='inside'"),
        (chain(), "3", {"place": "inside"}, "place='inside'"),
        (chain(), "0", {"norms": {"3": None}}, "norms has '3'"),
        (chain(), "0", {"norms": {"0": "9"}}, "norms has '9', which names nothing"),
        (chain(), [], {}, "names is empty"),
        (chain(), ["0", "3"], {"clamp": 3.0}, "outside clamp"),
        (chain(), "0", {"unit": "weight", "norms": {"0": "1"}}, "norms goes with unit='channel'"),
        (chain(), "0", {"norms": {"0": "2"}}, "norms has '2' for '0', a ReLU"),
        (chain(), "3", {"norms": {"3": "1"}}, "'1' has 8 channels, but '3' has 4"),
        (tied(), ["0", "2"], {}, "'2', which shares its weight with '0'"),
        (nn.DataParallel(chain()), "*.0", {}, "model is a DataParallel: gate model.module"),
        (torch.compile(chain(), backend="eager"), "*.0", {}, "gate model._orig_mod"),
        (Transformer(), "encoder.linear1", {}, "part of 'encoder', a TransformerEncoderLayer"),
        (
            Transformer(),
            "encoder.linear1",
            {"norms": {"encoder.linear1": None}},
            "reads the weights without the gate",
        ),
        (nn.Linear(3, 4), "*", {}, "model is itself the layer"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4)), "0", {}, "'1', a InstanceNorm2d"),
        (Shared(), ["a", "b"], {}, "'norm' follows more than one"),
        (Forked(), "conv", {}, "goes through"),
        (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)),
            "0",
            {},
            "reaches the norm '3' through other layers",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4)),
            "0",
            {},
            "reaches the norm '3' through other layers",
        ),
        (Mobile(), "expand", {}, "reaches the norm 'norm' through other layers"),
        (Dense(), "conv", {}, "reaches the norm 'norm' through other layers"),
        (FunctionalNorm(), "conv", {}, "reaches the norm"),
    ],
)
def test_refusals_leave_the_model_alone(model, names, options, message):
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=message):
        gates.attach(model, names, **options)
    assert dict(model.named_modules()) == before


@pytest.mark.parametrize("name", ["3", "again"])
def test_a_layer_with_two_names_is_gated_under_both(name):
    model = chain()
    model.again = model[3]
    gates.attach(model, name)
    assert model.again is model[3]
    assert type(model.again) is gates.GatedConv2d


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "names=0"), ((None,), "names=None"), ((["0", 3],), r"names=\['0', 3\]")],
)
def test_names_are_names(arguments, message):
    with pytest.raises(TypeError, match=message):
        gates.attach(chain(), *arguments)
    with pytest.raises(TypeError, match="norms='1'"):
        gates.attach(chain(), "0", norms="1")


def test_blocks_may_be_gated_one_by_one():
    """Names are relative to what `attach` was given, and two blocks have the same ones."""
    blocks = nn.Sequential(Forked(), Branches(), Branches())
    with torch.no_grad():
        for block in blocks[1:]:
            gates.attach(block, "conv_a")
        blocks[1].norm_a.gate.log_alpha.fill_(-9.0)
    assert list(gates.gated_layers(blocks)) == ["1.conv_a", "2.conv_a"]
    assert gates.density(blocks, kind="realised").item() == 0.5
    assert len(list(gates.gate_parameters(blocks))) == 2
    with pytest.raises(ValueError, match=r"'1\.conv_a', which is gated already"):
        gates.attach(blocks, "1.conv_a", unit="weight")
    gates.attach(blocks, "?.conv_b")
    assert list(gates.gated_layers(blocks)) == ["1.conv_b", "1.conv_a", "2.conv_b", "2.conv_a"]


def test_names_follow_a_model_into_copies_and_wrappers(tmp_path):
    model = chain()
    gates.attach(model, ["0", "3"])
    assert list(gates.gated_layers(nn.DataParallel(model))) == ["module.0", "module.3"]
    assert list(gates.gated_layers(torch.compile(model, backend="eager"))) == ["_orig_mod.0", "_orig_mod.3"]
    torch.save(model, tmp_path / "model.pt")
    for copied in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert list(gates.gated_layers(copied)) == ["0", "3"]
        assert gates.gated_layers(copied)["0"].layer is copied[0]
        assert copied.state_dict().keys() == model.state_dict().keys()


def test_a_norm_that_lost_its_gates_is_noticed():
    model = chain()
    gates.attach(model, ["0", "3"])
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    with pytest.raises(ValueError, match=r"'1\.gate' are in a SyncBatchNorm"):
        gates.density(converted)


def test_gates_of_the_users_own_are_nobody_elses_concern():
    model = chain()
    gates.attach(model, "0")
    model.add_module("other", Forked())
    model.other.gate = gates.HardConcrete(4)
    assert list(gates.gated_layers(model)) == ["0"]


def test_what_a_wrapper_put_on_a_layer_does_not_go_past_the_gate():
    model = chain()
    model[3].compile(backend="eager")
    gates.attach(model, "3")
    with torch.no_grad():
        model[3].gate.log_alpha.fill_(-9.0)
    assert not model.eval()[3](torch.randn(2, 8, 6, 6)).any()
    wrapped = chain()
    wrapped[3].forward = wrapped[3].forward
    with pytest.raises(TypeError, match="has a forward of its own"):
        gates.attach(wrapped, "3")
    pruned = chain()
    nn.utils.prune.l1_unstructured(pruned[3], "weight", amount=0.5)
    with pytest.raises(TypeError, match="weight of this Conv2d is no parameter"):
        gates.attach(pruned, "3")


def test_a_layer_of_the_users_own_kind_is_not_replaced():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.BatchNorm1d(4))
    with pytest.raises(TypeError, match="would lose what a ParametrizedLinear does"):
        gates.attach(model, "0", norms={"0": None})
    gates.attach(model, "0", norms={"0": "1"})
    assert type(model[1]) is gates.GatedBatchNorm1d


@pytest.mark.parametrize("unit", ["channel", "weight"])
def test_twice_is_refused(unit):
    model = chain()
    gates.attach(model, ["0", "3"])
    for name in ("0", "3"):
        with pytest.raises(ValueError, match="gated already"):
            gates.attach(model, name, unit=unit)


def test_two_layers_cannot_have_their_gates_in_one_norm():
    model = Shared()
    gates.attach(model, "a")
    with pytest.raises(ValueError, match="followed by 'norm', which already has the gates of another layer"):
        gates.attach(model, "b")


def test_the_state_dict_of_the_plain_model_still_fits():
    plain, model = chain(), chain()
    gates.attach(model, ["0", "3"])
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["1.gate.log_alpha", "3.gate.log_alpha"]
    x = torch.randn(2, 3, 8, 8)
    for layer in gates.gated_layers(model).values():
        with torch.no_grad():
            layer.gate.log_alpha.fill_(50.0)
    assert torch.allclose(model.eval()(x), plain.eval()(x), atol=1e-6)
