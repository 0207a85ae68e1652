"""Rules of the harvest: closed channels go through what keeps them zero, and stay before what does not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from nupi import gates


class Net(nn.Module):
    """A gated layer `a`, others by name, and a forward pass given as a function of them and x."""

    def __init__(self, call, a, **layers):
        super().__init__()
        self.call, self.a, self.head = call, a, nn.LazyLinear(2)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.head(self.call(self, x))


def images(batch):
    return torch.randn(batch, 3, 8, 8)


def closed(call, a=None, **layers):
    """A model, lived in, of whose layer `a` 5 channels of 8 are closed."""
    torch.manual_seed(0)
    model = Net(call, nn.Conv2d(3, 8, 3, padding=1) if a is None else a, **layers)
    model(images(2))
    gates.attach(model, "a")
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.tensor([-9.0, 1.0, -9.0, -9.0, 1.0, -9.0, 1.0, -9.0]))
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.bias.normal_()
                norm.running_mean.normal_()
    return model


def pooled(y):
    return y.mean((2, 3))


def excited(back):
    """Squeeze and excitation, with sizes read from the tensor; `back` gives the scales their dimensions."""

    def call(m, x):
        y = m.a(x).relu()
        batch, channels, _, _ = y.size()
        scale = m.up(m.down(m.pool(y).view(batch, channels)).relu()).sigmoid()
        return pooled(y * back(scale, y))

    return call, {"pool": nn.AdaptiveAvgPool2d(1), "down": nn.Linear(8, 4), "up": nn.Linear(4, 8)}


def spatial_attention(m, x):
    y = m.a(x).relu()
    return pooled(y * m.b(x).sigmoid())


def inverted_bottleneck(m, x):
    return pooled(m.project(functional.relu6(m.norm(m.a(m.expand(x).relu())))))


def scaled(m, x):
    return pooled(m.a(x) * m.scale(x.new_ones(1)))


def resized(m, x):
    y = m.a(x)
    return pooled(functional.interpolate(m.pool(y), size=y.shape[-2:]))


def divided(m, x):
    y = m.a(x).relu()
    return y.sum((2, 3)) / (y.size(2) * y.size(3))


THROUGH = {
    "interpolate to shape[-2:]": resized,
    "interpolate to shape[2:]": lambda m, x: pooled(functional.interpolate(m.pool(m.a(x)), size=x.shape[2:])),
    "over a number of pixels": divided,
    "squeeze": lambda m, x: m.pool(m.a(x)).squeeze(-1).squeeze(-1),
    "squeeze of two": lambda m, x: torch.squeeze(m.pool(m.a(x)), (2, 3)),
    "index": lambda m, x: m.a(x)[:, :, 0, 0],
    "slice": lambda m, x: pooled(m.a(x)[:, :, ::2, 1:]),
    "flatten(2)": lambda m, x: m.a(x).flatten(2).mean(-1),
    "sum": lambda m, x: m.a(x).sum((-1, -2)),
    "amax": lambda m, x: torch.amax(m.a(x), dim=(2, 3)),
    "half": lambda m, x: pooled(m.a(x) / 2),
    "minus": lambda m, x: pooled(-m.a(x)),
    "power": lambda m, x: pooled(m.a(x) ** 2),
    "clamp": lambda m, x: pooled(m.a(x).clamp(min=0).clamp(-1, 1)),
    "float": lambda m, x: pooled(m.a(x).double().to(torch.float32).float()),
    "relu_": lambda m, x: pooled(functional.relu_(m.a(x))),
    "hardtanh": lambda m, x: pooled(functional.hardtanh(m.hard(m.a(x)))),
    "prelu": lambda m, x: pooled(m.prelu(m.a(x))),
    "pad": lambda m, x: pooled(functional.pad(m.zeros(m.a(x)), (1, 2, 0, 1), mode="replicate")),
    "upsampling": lambda m, x: pooled(m.up(m.a(x))),
    "cat with the input": lambda m, x: pooled(torch.cat([x, m.a(x).relu(), x], 1)),
    "scale": scaled,
    "expand_as itself": lambda m, x: (lambda y: pooled(y.expand_as(y)))(m.a(x)),
    "spatial attention": spatial_attention,
}
EXTRA = {
    "pool": nn.AdaptiveAvgPool2d(1),
    "hard": nn.Hardtanh(-2, 2),
    "prelu": nn.PReLU(),
    "zeros": nn.ZeroPad2d(1),
    "up": nn.UpsamplingBilinear2d(scale_factor=2),
    "scale": nn.Linear(1, 1),
    "b": nn.Conv2d(3, 1, 1),
}


def assert_goes(model, left=3, fresh=images):
    result = gates.harvest(model, fresh(2), repeats=1)
    assert result.channels["a"] == (left, 8)
    others = fresh(3)
    assert torch.allclose(result.model(others), model.eval()(others), atol=1e-5)
    return result


@pytest.mark.parametrize("name", THROUGH)
def test_closed_channels_go(name):
    assert_goes(closed(THROUGH[name], **EXTRA))


BACK = {
    "view": lambda scale, y: scale.view(y.size(0), y.size(1), 1, 1),
    "reshape": lambda scale, y: scale.reshape((y.shape[0], y.shape[1], 1, 1)),
    "rest": lambda scale, y: scale.view(y.size(0), -1, 1, 1),
    "expand_as": lambda scale, y: scale[:, :, None, None].expand_as(y),
    "unsqueeze": lambda scale, _: scale.unsqueeze(-1).unsqueeze(-1),
}


@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_squeeze_and_excitation_loses_its_scales_too(back):
    call, layers = excited(back)
    small = assert_goes(closed(call, **layers)).model
    assert (small.down.in_features, small.up.out_features) == (3, 3)


def test_tokens_lose_features():
    model = closed(lambda m, x: m.a(x.flatten(1, 2)).relu().mean(1), nn.Linear(8, 8))
    assert assert_goes(model).model.head.in_features == 3


def test_the_gated_depthwise_convolution_of_an_inverted_bottleneck_takes_the_one_in_front_along():
    depthwise = nn.Conv2d(8, 8, 3, groups=8, bias=False)
    layers = {"expand": nn.Conv2d(3, 8, 1), "norm": nn.BatchNorm2d(8), "project": nn.Conv2d(8, 4, 1)}
    small = assert_goes(closed(inverted_bottleneck, depthwise, **layers)).model
    assert (small.expand.out_channels, small.a.groups, small.project.in_channels) == (3, 3, 3)


def misused_count(m, x):
    y = m.a(x)
    return pooled(y) / y.size(1)


def count_for_another_dimension(m, x):
    """8 channels of 8 x 8: the number of channels is taken for a height, which would go wrong unseen."""
    y = m.a(x)
    return y.view(y.size(0), -1, y.size(1), 8).mean((2, 3))


def count_for_something_else(m, x):
    y, z = m.a(x), m.a2(x).softmax(1)
    return torch.cat([pooled(y), z.view(y.size(0), y.size(1), -1).mean(-1)], 1)


LIGHT = "is not zero where .* uses it"
REFUSED = {
    "lifted": (lambda m, x: pooled(m.a(x).clamp(min=0.5)), LIGHT),
    "zeroth power": (lambda m, x: pooled(m.a(x) ** 0), LIGHT),
    "over": (lambda m, x: pooled(2 / (m.a(x).exp() + m.a2(x).exp())), LIGHT),
    "padded": (lambda m, x: pooled(functional.pad(m.a(x), (1, 1), value=1.0)), LIGHT),
    "padded channels": (
        lambda m, x: pooled(functional.pad(m.a(x), (0, 0, 0, 0, 1, 0))),
        "behind the channels",
    ),
    "slopes": (lambda m, x: pooled(m.slopes(m.a(x))), "one slope per channel"),
    "squeezed": (lambda m, x: m.pool(m.a(x)).squeeze(), "must name dimensions"),
    "some": (lambda m, x: pooled(m.a(x)[:, 1:]), "must take all channels"),
    "reduced": (lambda m, x: m.a(x).sum(1).flatten(1), "other than the channels'"),
    "count": (misused_count, r"goes into truediv\(\), which may read the number of channels"),
    "height": (count_for_another_dimension, "for another dimension"),
    "something else": (
        count_for_something_else,
        r"goes into view\(\), called in a way that harvest does not support",
    ),
    "chosen": (lambda m, x: pooled(m.a(x)[[0, 0]]), "may have only numbers, slices and None"),
    "named": (lambda m, x: pooled(torch.add(m.a(x), other=m.a2(x).softmax(1))), "called in a way"),
    "chunks": (
        lambda m, x: pooled(torch.cat(torch.chunk(m.a(x), 4, 1)[::-1], 1)),
        "which piece it takes is not known",
    ),
}
LAYERS = {"pool": nn.AdaptiveAvgPool2d(1), "slopes": nn.PReLU(8), "a2": nn.Conv2d(3, 8, 3, padding=1)}


@pytest.mark.parametrize("name", REFUSED)
def test_closed_channels_stay(name):
    call, message = REFUSED[name]
    model = closed(call, **LAYERS)
    with pytest.raises(gates.HarvestError, match=message):
        gates.harvest(model, images(2))
    result = gates.harvest(model, images(2), partial=True, repeats=1)
    assert result.channels["a"] == (8, 8)
    others = images(3)
    assert torch.allclose(result.model(others), model.eval()(others), atol=1e-5)


def test_parts_that_are_not_listed_are_left_alone():
    def call(m, x):
        return torch.cat(torch.chunk(pooled(x), 3, 1)[::-1], 1) + m.b(pooled(m.a(x)))

    assert_goes(closed(call, b=nn.Linear(8, 3)))
