"""Networks of many shapes to gate and to harvest, with the names of what to gate."""

import torch
from torch import nn
from torch.nn import functional

from nupi import gates


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
