"""Harvest: the same outputs from a smaller model, for many shapes of network, and clear refusals for others."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from nupi import gates
from nupi.gates import HarvestError, harvest


class Net(nn.Module):
    """Layers by name, and a forward pass given as a function of them and x."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.call(self, x)


def convolution(i, o, **options):
    return nn.Conv2d(i, o, 3, padding=1, **options)


def chain():
    return nn.Sequential(
        *(convolution(3, 12, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)),
        *(convolution(12, 16), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 20), nn.BatchNorm1d(20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 5)),
    ), ["0", "4", "9"]


def without_norms():
    return nn.Sequential(
        convolution(3, 8),
        nn.ReLU(),
        convolution(8, 8),
        nn.Tanh(),
        nn.Flatten(1),
        nn.Linear(512, 6),
        nn.Linear(6, 2),
    ), ["0", "2", "5"]


def residual():
    def call(m, x):
        x = m.stem(x)
        y = functional.relu(m.norm1(m.conv1(x)))
        return m.head((x + m.norm2(m.conv2(y))).relu().mean((2, 3)))

    layers = {"stem": convolution(3, 8), "conv1": convolution(8, 10), "norm1": nn.BatchNorm2d(10)}
    layers |= {"conv2": convolution(10, 8), "norm2": nn.BatchNorm2d(8), "head": nn.Linear(8, 4)}
    return Net(call, **layers), "conv1"


def depthwise():
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.ReLU6()),
        *(convolution(12, 12, groups=12, bias=False), nn.Hardswish(), nn.Conv2d(12, 6, 1)),
    ), "0"


def concatenation():
    def call(m, x):
        a, b = torch.relu(m.norm_a(m.a(x))), torch.relu(m.b(x))
        return m.last(torch.cat([a, b], dim=1))

    layers = {
        "a": convolution(3, 6),
        "norm_a": nn.BatchNorm2d(6),
        "b": convolution(3, 5),
        "last": convolution(11, 4),
    }
    return Net(call, **layers), ["a", "b"]


def squeeze_and_excite():
    def call(m, x):
        y = functional.relu(m.norm(m.conv(x)))
        scale = torch.sigmoid(m.up(functional.relu(m.down(functional.adaptive_avg_pool2d(y, 1)))))
        return m.last(y * scale)

    layers = {"conv": convolution(3, 10), "norm": nn.BatchNorm2d(10), "down": nn.Conv2d(10, 4, 1)}
    return Net(call, **layers, up=nn.Conv2d(4, 10, 1), last=convolution(10, 3)), ["conv", "down"]


def viewed():
    def call(m, x):
        y = functional.max_pool2d(torch.relu(input=m.norm(m.conv(x))), 2)
        return m.head(2.0 * y.view(y.size(0), -1).relu())

    return Net(call, conv=convolution(3, 7), norm=nn.BatchNorm2d(7), head=nn.Linear(7 * 16, 3)), "conv"


def shaped():
    def call(m, x):
        y = torch.relu(m.conv(x))
        return m.head(y.reshape(y.shape[0], -1))

    return Net(call, conv=convolution(3, 7), head=nn.Linear(7 * 64, 3)), "conv"


def tokens():
    def call(m, x):
        return m.second(
            functional.gelu(m.first(x.flatten(2)))
        )  # (batch, 3, 64): features are the last dimension

    return Net(call, first=nn.Linear(64, 20), second=nn.Linear(20, 4)), "first"


def norm_behind_the_activation():
    return nn.Sequential(convolution(3, 9), nn.ReLU(), nn.BatchNorm2d(9), convolution(9, 2)), {"0": "2"}


def unpacked_shape():
    def call(m, x):
        y = torch.relu(m.conv(x))
        batch, _, _, _ = y.shape
        return m.head(y.view(batch, -1))

    return Net(call, conv=convolution(3, 7), head=nn.Linear(7 * 64, 3)), "conv"


ARCHITECTURES = [
    norm_behind_the_activation,
    unpacked_shape,
    chain,
    without_norms,
    residual,
    depthwise,
    concatenation,
    squeeze_and_excite,
    viewed,
    shaped,
    tokens,
]
IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def lived_in(model):
    """Norms as after a training: a leak of a mean or a bias would show."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model


def gated(build, *, place="after", unit="channel", seed=0):
    torch.manual_seed(seed)
    model, names = build()
    norms = names if isinstance(names, dict) else None
    gates.attach(lived_in(model), names, place=place, unit=unit, norms=norms)
    with torch.no_grad():
        for layer in gates.gated_layers(model).values():
            layer.gate.log_alpha.normal_(-1.6, 2.0)  # half of them closed
    return model


def closed(model):
    return {name: int((~layer.gate.is_open()).sum()) for name, layer in gates.gated_layers(model).items()}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("build", ARCHITECTURES)
def test_same_outputs_from_fewer_channels(build, place):
    model = gated(build, place=place)
    state, shut = copy.deepcopy(model.state_dict()), closed(model)
    result = harvest(model, IMAGES, repeats=1)
    assert sum(shut.values()) > 0
    for name, count in shut.items():
        left, total = result.channels[name]
        assert total - left == min(count, total - 1)
    others = torch.randn(3, 3, 8, 8)
    assert torch.allclose(result.model(others), model.eval()(others), atol=1e-5)
    assert result.difference <= 1e-5
    assert result.after.parameters < result.before.parameters
    assert result.after.flops < result.before.flops
    assert not any(isinstance(module, gates.Gated | gates.HardConcrete) for module in result.model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_the_result_exports(build):
    small = harvest(gated(build), IMAGES, repeats=1).model
    program = torch.export.export(small, (IMAGES,))
    assert torch.allclose(program.module()(IMAGES), small(IMAGES), atol=1e-6)


def test_the_counts_are_those_by_hand():
    model = nn.Sequential(convolution(3, 10, bias=False), nn.BatchNorm2d(10), nn.ReLU(), convolution(10, 4))
    gates.attach(model, "0")
    with torch.no_grad():
        model[1].gate.log_alpha[:6] = -9.0
    result = harvest(model, IMAGES, repeats=3)
    for cost, width in ((result.before, 10), (result.after, 4)):
        assert cost.parameters == 27 * width + 2 * width + 36 * width + 4
        assert cost.flops == 2 * 5 * 64 * (27 * width + 36 * width)
        assert cost.milliseconds > 0
    assert result.channels == {"0": (4, 10), "3": (4, 4)}
    assert "parameters" in str(result)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), place=st.sampled_from(["before", "after"]))
def test_any_pattern_of_closed_gates(data, place):
    model = gated(residual, place=place, seed=data.draw(st.integers(0, 99)))
    pattern = data.draw(st.lists(st.booleans(), min_size=10, max_size=10))
    with torch.no_grad():
        model.norm1.gate.log_alpha.copy_(torch.where(torch.tensor(pattern), 1.0, -9.0))
    result = harvest(model, IMAGES, repeats=1)
    assert result.channels["conv1"][0] == max(sum(pattern), 1)
    assert result.channels["conv2"] == (8, 8)
    assert result.model.conv2.in_channels == max(sum(pattern), 1)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 12), nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x, y):
        return {"logits": self.c(torch.tanh(self.a(x)) * self.b(y)), "inputs": (x, y)}


def test_several_inputs_and_nested_outputs():
    model = gated(lambda: (TwoInputs(), ["a", "b"]))
    inputs = torch.randn(4, 5), torch.randn(4, 6)
    result = harvest(model, inputs, repeats=1)
    both = model.a.gate.is_open() & model.b.gate.is_open()  # a product is zero where either side is
    assert result.channels["a"] == result.channels["b"] == (int(both.sum()), 12)
    assert torch.allclose(result.model(*inputs)["logits"], model.eval()(*inputs)["logits"], atol=1e-5)


def test_every_layer_keeps_a_channel():
    model = gated(chain)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(-9.0)
    result = harvest(model, IMAGES, repeats=1)
    assert [result.channels[name][0] for name in ("0", "4", "9")] == [1, 1, 1]
    assert torch.allclose(result.model(IMAGES), model.eval()(IMAGES), atol=1e-6)


def test_nothing_closed_takes_nothing_out():
    model = gated(chain)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(1.0)
    result = harvest(model, IMAGES, repeats=1)
    assert result.before.parameters == result.after.parameters
    assert result.before.flops == result.after.flops


def test_gates_on_weights_become_zeros_and_empty_rows_go():
    model = gated(without_norms, unit="weight")
    with torch.no_grad():
        model[2].gate.log_alpha[:3] = -9.0
        model[2].bias[:3] = 0.0
    result = harvest(model, IMAGES, repeats=1)
    assert result.channels["2"] == (5, 8)
    share = gates.density(model, kind="realised", over="all").item()
    assert result.before.nonzero == pytest.approx(result.before.parameters * share, abs=3)
    assert torch.allclose(result.model(IMAGES), model.eval()(IMAGES), atol=1e-5)


def test_the_result_trains_and_saves(tmp_path):
    small = harvest(gated(chain), IMAGES, repeats=1).model.train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in small.parameters()]
    small(IMAGES).square().sum().backward()
    optimizer.step()
    assert all((a != b).any() for a, b in zip(before, small.parameters(), strict=True) if a.dim() > 1)
    torch.save(small.state_dict(), tmp_path / "small.pt")
    small.load_state_dict(torch.load(tmp_path / "small.pt", weights_only=True))


def test_mode_and_randomness_of_the_model_are_left_alone():
    model = gated(chain).train()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    harvest(model, IMAGES, repeats=1)
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def ungated_norm_behind():
    """A closed channel that a plain norm lights up again."""
    return nn.Sequential(convolution(3, 6), nn.ReLU(), nn.BatchNorm2d(6), convolution(6, 2)), {"0": None}


def mixed_norm():
    return nn.Sequential(convolution(3, 6), nn.ReLU(), nn.GroupNorm(2, 6), convolution(6, 2)), {"0": None}


def the_output_itself():
    return nn.Sequential(convolution(3, 6), nn.ReLU()), "0"


def grouped():
    return nn.Sequential(convolution(3, 6), nn.ReLU(), convolution(6, 4, groups=2)), "0"


def grouped_itself():
    return nn.Sequential(convolution(3, 6, groups=3), nn.BatchNorm2d(6), nn.ReLU(), convolution(6, 4)), "0"


def fixed_view():
    return Net(
        lambda m, x: m.head(m.conv(x).view(-1, 6 * 64)), conv=convolution(3, 6), head=nn.Linear(384, 2)
    ), "conv"


def channels_read():
    def call(m, x):
        y = m.conv(x)
        return m.head(y * y.size(1))

    return Net(call, conv=convolution(3, 6), head=convolution(6, 2)), "conv"


def named_argument():
    """The flow must not be lost when a tensor is given by name."""
    return Net(
        lambda m, x: m.b(torch.softmax(input=m.a(x), dim=1)), a=convolution(3, 6), b=convolution(6, 2)
    ), "a"


def called_twice():
    return Net(lambda m, x: m.b(m.a(m.a(x))), a=convolution(3, 3), b=convolution(3, 2)), "a"


def tied():
    model = nn.Sequential(convolution(3, 3), nn.BatchNorm2d(3), convolution(3, 3), convolution(3, 2))
    model[2].weight = model[0].weight
    return model, "0"


def weight_read_elsewhere():
    def call(m, x):
        return m.c(m.norm(m.a(x))) * m.a.weight.mean()

    return Net(call, a=convolution(3, 6), norm=nn.BatchNorm2d(6), c=convolution(6, 2)), "a"


def depthwise_with_bias():
    """A closed channel that a bias lights up again."""
    return nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), convolution(6, 6, groups=6), nn.Conv2d(6, 2, 1)), "0"


def added_to_something_live():
    return Net(
        lambda m, x: m.c(m.a(x) + m.b(x)), a=convolution(3, 6), b=convolution(3, 6), c=convolution(6, 2)
    ), "a"


def added_to_the_input():
    return Net(lambda m, x: m.c(m.a(x) + x), a=convolution(3, 3), c=convolution(3, 2)), "a"


def named_sum():
    def call(m, x):
        y = m.a(x)
        return m.c(torch.add(input=y, other=1.0))

    return Net(call, a=convolution(3, 6), c=convolution(6, 2)), "a"


def attention_over_channels():
    return Net(lambda m, x: m.c(m.a(x).softmax(1)), a=convolution(3, 6), c=convolution(6, 2)), "a"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (ungated_norm_behind, "'0' cannot be taken out: one of them is not zero everywhere"),
        (mixed_norm, r"meets '2' \(GroupNorm\), which has no rule"),
        (the_output_itself, "part of the model's output"),
        (grouped, r"meets '2' \(Conv2d\): groups"),
        (grouped_itself, r"its output meets '0' \(Conv2d\): groups"),
        (fixed_view, r"meets view\(\): fewer channels have no room"),
        (channels_read, r"meets mul\(\), which may read the number"),
        (named_argument, r"meets softmax\(\), which has no rule"),
        (called_twice, "'a', which is used twice"),
        (tied, "shares parameters"),
        (weight_read_elsewhere, "'a', which is used twice, shares parameters, or has them read elsewhere"),
        (depthwise_with_bias, "not zero everywhere"),
        (added_to_something_live, "not zero everywhere"),
        (added_to_the_input, r"meets add\(\): both sides"),
        (named_sum, r"meets add\(\), called in a way"),
        (attention_over_channels, r"meets softmax\(\), which has no rule"),
    ],
)
def test_what_cannot_go_is_refused_by_name_or_left_in(build, message):
    model = gated(build)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.linspace(-9.0, 1.0, len(phi)))
    with pytest.raises(HarvestError, match=message):
        harvest(model, IMAGES, repeats=1)
    result = harvest(model, IMAGES, repeats=1, partial=True)
    assert torch.allclose(result.model(IMAGES), model.eval()(IMAGES), atol=1e-5)
    assert list(result.stuck) == list(gates.gated_layers(model))
    assert result.after.parameters == result.before.parameters
    assert "closed channels stay" in str(result)


def test_two_branches_that_close_the_same_channel_lose_it():
    model = gated(lambda: (added_to_something_live()[0], ["a", "b"]))
    with torch.no_grad():
        model.a.gate.log_alpha.copy_(torch.tensor([-9.0, -9.0, -9.0, 1.0, 1.0, 1.0]))
        model.b.gate.log_alpha.copy_(torch.tensor([-9.0, -9.0, 1.0, 1.0, 1.0, -9.0]))
    result = harvest(model, IMAGES, partial=True, repeats=1)
    assert result.channels == {"a": (4, 6), "b": (4, 6), "c": (2, 2)}
    assert set(result.stuck) == {"a", "b"}


def small_model(last=None):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2) if last is None else last)
    gates.attach(model, "0", clamp=4.6)
    with torch.no_grad():
        model[0].gate.log_alpha[:2] = -9.0
    return model


def test_gates_beyond_their_clamp_are_left_alone_too():
    model = small_model().train()
    harvest(model, torch.randn(2, 3), repeats=1)
    assert (model[0].gate.log_alpha[:2] == -9.0).all()


def test_layers_that_the_graph_does_not_show_are_stuck():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    model = nn.Sequential(encoder, nn.Linear(8, 2))
    gates.attach(model, "0.linear1", norms={"0.linear1": None})
    with torch.no_grad():
        encoder.linear1.gate.log_alpha[:9] = -9.0
    with pytest.raises(
        HarvestError, match=r"inside '0' \(TransformerEncoderLayer\), which is not looked into"
    ):
        harvest(model, torch.randn(2, 5, 8))
    model = Net(lambda m, x: m.used(x), used=small_model(), spare=small_model()[0])
    result = harvest(model, torch.randn(2, 3), partial=True, repeats=1)
    assert result.stuck == {"spare": "the forward pass never calls it"}
    assert result.channels["used.0"] == (2, 4)


class Keeps(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.layers, self.kept, self.count = small_model(), kept, 0

    def forward(self, x):
        y = self.layers(x)
        self.feature, self.count = self.kept(y), self.count + 1
        return y


def test_what_a_forward_pass_keeps():
    inputs = torch.randn(2, 3)
    model = Keeps(lambda y: y.detach())
    model(inputs)
    small = harvest(model, inputs, repeats=1).model
    assert (model.count, small.count) == (1, 1)
    assert torch.equal(small.feature, model.feature)
    model = Keeps(torch.relu)
    model(inputs)
    with pytest.raises(HarvestError, match=r"cannot be copied.* keep y.detach\(\)"):
        harvest(model, inputs)


class Ends(nn.Module):
    """The last layer's output, and what a function makes of it."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 2), function

    def forward(self, x):
        y = self.layer(x)
        return y, self.function(y)


def test_what_cannot_be_compared_is_refused():
    inputs = torch.randn(2, 3)
    with pytest.raises(HarvestError, match="differ by nan"):
        harvest(small_model(Ends(lambda y: y * math.nan)), inputs)
    equal = harvest(small_model(Ends(lambda y: y.masked_fill(y < 0, -math.inf))), inputs, repeats=1)
    assert equal.difference <= 1e-6
    with pytest.raises(HarvestError, match="no numbers on the example"):
        harvest(small_model(), torch.randn(0, 3))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.randn(2, 5), r"example .* is a tensor \(2, 5\) of torch.float32: RuntimeError: mat1"),
        (torch.ones(2, 3, dtype=torch.long), r"example .* is a tensor \(2, 3\) of torch.int64: RuntimeError"),
        ([torch.randn(2, 3)], "example .* is a list: TypeError"),
        ({"x": torch.randn(2, 3)}, "example .* is a dict: TypeError"),
        ((torch.randn(2, 3), None), "example .*, a NoneType: TypeError"),
    ],
)
def test_a_wrong_example_is_named(example, message, capfd):
    with pytest.raises(HarvestError, match=message):
        harvest(small_model(), example)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("wrap", "inside"),
    [
        (nn.DataParallel, "module"),
        (torch.optim.swa_utils.AveragedModel, "module"),
        (torch.compile, "_orig_mod"),
    ],
)
def test_wrappers_are_told_apart_from_models(wrap, inside):
    with pytest.raises(HarvestError, match=f"wrapped in .*; pass model.{inside}$"):
        harvest(wrap(small_model()), torch.randn(2, 3))


def test_the_memory_format_is_kept():
    last = torch.channels_last
    model = nn.Sequential(convolution(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.ReLU(), convolution(4, 2))
    gates.attach(model.to(memory_format=last), ["0", "2"])
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.linspace(-9.0, 1.0, len(phi)))
    small = harvest(model, IMAGES.to(memory_format=last), repeats=1).model
    for layer in (small[0], small[2], small[4]):
        assert layer.weight.stride() == layer.weight.detach().clone().to(memory_format=last).stride()
    assert not small[0].weight.is_contiguous()


def test_weights_that_are_read_past_their_gates_are_named():
    model = Net(lambda m, x: functional.linear(m.enc(x), m.enc.weight.t()), enc=nn.Linear(3, 4))
    gates.attach(model, "enc")
    with torch.no_grad():
        model.enc.gate.log_alpha.fill_(-1.0)  # open, but not fully: nothing is closed
    with pytest.raises(HarvestError, match=r"reads the weights of a gated layer itself \(tied weights\)"):
        harvest(model, torch.randn(2, 3))


class DependsOnValues(nn.Sequential):
    def forward(self, x):
        return super().forward(x) if x.sum() > math.inf else x


def test_other_refusals():
    model = DependsOnValues(nn.Linear(3, 4), nn.Linear(4, 2))
    gates.attach(model, "0", norms={"0": None})
    with pytest.raises(HarvestError, match=r"torch.fx cannot trace DependsOnValues"):
        harvest(model, torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"repeats=0 must be .* at least 1"):
        harvest(model, torch.randn(2, 3), repeats=0)
    with pytest.raises(ValueError, match="no gated layers"):
        harvest(nn.Linear(3, 4), torch.randn(2, 3))
    model = nn.Sequential(convolution(3, 4), nn.BatchNorm2d(4, track_running_stats=False), convolution(4, 2))
    gates.attach(model, "0")
    with pytest.raises(HarvestError, match="track_running_stats"):
        harvest(model, IMAGES)
    model = gated(chain).bfloat16()
    with pytest.raises(HarvestError, match=r"differ by .*tolerance=1e-09"):
        harvest(model, IMAGES.bfloat16(), tolerance=1e-9)
