"""What a harvest refuses, and in which words; and what it leaves alone."""

import math

import pytest
import torch
from gates.networks import IMAGES, Net, chain, convolution, gated
from torch import nn
from torch.nn import functional

from nupi import gates
from nupi.gates import HarvestError, harvest


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
        (
            ungated_norm_behind,
            r"'0' cannot be taken out: one of them is not zero where '3' \(Conv2d\) uses it",
        ),
        (mixed_norm, r"is not zero where '3' \(Conv2d\) uses it"),
        (the_output_itself, "part of the model's output"),
        (grouped, "in a group of .2., which stays or goes as a whole"),
        (
            grouped_itself,
            r"its output goes into .0. \(Conv2d\): its groups stay or go with its input channels",
        ),
        (fixed_view, r"goes into view\(\): its sizes are fixed, so fewer channels do not fit"),
        (channels_read, r"goes into mul\(\), which may read the number"),
        (named_argument, r"goes into softmax\(\): it must be over another dimension"),
        (called_twice, "'a', which is used twice"),
        (tied, "shares parameters"),
        (weight_read_elsewhere, "'a', which is used twice, shares parameters, or has them read elsewhere"),
        (depthwise_with_bias, "is not zero where .* uses it"),
        (added_to_something_live, r"is not zero where 'c' .* something is added"),
        (added_to_the_input, r"goes into add\(\): both sides"),
        (named_sum, r"goes into add\(\), called in a way"),
        (attention_over_channels, r"goes into softmax\(\): it must be over another dimension"),
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
    encoder.linear1 = gates.GatedLinear(encoder.linear1, gates.HardConcrete(16))  # `attach` refuses it
    with torch.no_grad():
        encoder.linear1.gate.log_alpha[:9] = -9.0
    with pytest.raises(
        HarvestError, match=r"inside '0' \(TransformerEncoderLayer\), whose inside harvest does not see"
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
        ({"x": torch.randn(2, 3)}, r"example .* is x, a tensor \(2, 3\) of torch.float32: TypeError"),
        (({"x": torch.randn(2, 3)},), "example .* is a dict: TypeError"),
        ((torch.randn(2, 3), None), "example .*; a NoneType: TypeError"),
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
    model = gated(chain, place="before").bfloat16()  # behind the norm a gate is part of it from the start
    with pytest.raises(HarvestError, match=r"differ by .*tolerance=1e-09"):
        harvest(model, IMAGES.bfloat16(), tolerance=1e-9)
