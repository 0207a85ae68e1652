"""Channels whose dimension moves, that are cut into pieces, or that meet a softmax."""

import pytest
import torch
from gates.networks import IMAGES, Net, convolution
from torch import nn

from nupi import gates


def channels_last():
    def call(m, x):
        return m.head(m.a(x).relu().permute(0, 2, 3, 1)).transpose(1, 3)

    return Net(call, a=convolution(3, 8), head=nn.Linear(8, 2)), "a"


def to_tokens():
    def call(m, x):
        return m.head(torch.tanh(m.a(x)).flatten(2).transpose(-1, -2))

    return Net(call, a=convolution(3, 8), head=nn.Linear(8, 2)), "a"


def gated_linear_unit():
    """Half of the channels multiply the other half: a channel goes in both or in none."""

    def call(m, x):
        left, right = m.a(x).chunk(2, dim=1)
        return m.head(left * right)

    return Net(call, a=convolution(3, 12), head=convolution(6, 2)), "a"


def split_in_halves():
    def call(m, x):
        y = m.a(x)
        left, right = torch.split(y, y.size(1) // 2, dim=1)
        return m.head(left * right.sigmoid())

    return Net(call, a=convolution(3, 12), head=convolution(6, 2)), "a"


def half_of_a_shape():
    def call(m, x):
        y = m.a(x)
        left, right = y.split(y.shape[1] // 2, 1)
        return m.head(left + right)

    return Net(call, a=convolution(3, 12), head=convolution(6, 2)), "a"


def split_by_rows():
    def call(m, x):
        top, bottom = m.a(x).split([3, 5], dim=-2)
        return m.head(torch.cat([top.sum((2, 3)), bottom.mean((2, 3))], 1))

    return Net(call, a=convolution(3, 8), head=nn.Linear(16, 2)), "a"


def chunked_by_rows():
    def call(m, x):
        return m.head(m.a(x).chunk(3, dim=2)[2])

    return Net(call, a=convolution(3, 8), head=convolution(8, 2)), "a"


def attention_map():
    def call(m, x):
        y = m.a(x)
        weights = torch.softmax(m.score(x).flatten(2), dim=2).view(len(IMAGES), 1, 8, 8)
        return m.head((y * weights).sum((2, 3)))

    layers = {"a": convolution(3, 8), "score": convolution(3, 1), "head": nn.Linear(8, 2)}
    return Net(call, **layers), "a"


@pytest.mark.parametrize(
    "build",
    [
        *(channels_last, to_tokens, gated_linear_unit, attention_map),
        *(split_in_halves, split_by_rows, chunked_by_rows, half_of_a_shape),
    ],
    ids=lambda build: build.__name__,
)
def test_closed_channels_go(build):
    torch.manual_seed(0)
    model, name = build()
    gates.attach(model, name)
    with torch.no_grad():
        phi = model.a.gate.log_alpha
        phi.fill_(2.0)
        phi[1::3] = -5.0  # with 12 channels, the same ones in both halves of a chunk
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model.eval()(IMAGES), rtol=1e-5, atol=1e-5)
    left, before = small.channels["a"]
    assert left == before - len(phi[1::3])


def test_a_channel_that_one_half_closes_goes_from_both():
    model, name = gated_linear_unit()
    gates.attach(model, name)
    with torch.no_grad():
        model.a.gate.log_alpha.fill_(2.0)
        model.a.gate.log_alpha[:6] = torch.tensor(
            [-5.0, -5.0, 2.0, 2.0, 2.0, 2.0]
        )  # a product: zero in one half is enough
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model.eval()(IMAGES), rtol=1e-5, atol=1e-5)
    assert small.channels["a"] == (8, 12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: m.head(torch.cat([m.a(x).chunk(3, 1)[0]] * 3, 1)[:, :8]), "equal pieces"),
        (lambda m, x: m.head(torch.cat([m.a(x).split(4, 1)[1]] * 2, 1)), "its sizes are fixed"),
        (lambda m, x: m.head(m.a(x) // 2), "only a size may be divided"),
        (
            lambda m, x: (lambda y: m.head(y) + x.split(y.size(1) // 4, 1)[0])(m.a(x)),
            r"goes into split\(\), which may read the number of channels",
        ),
        (
            lambda m, x: m.head(m.a(x) * (m.a2(x).size(1) // 2)),
            r"goes into mul\(\), which may read the number",
        ),
        (lambda m, x: m.head(torch.cat(m.a(x).chunk(2, 1), 1)), r"goes into cat\(\)"),
        (lambda m, x: m.head(m.a(x).softmax(dim=1)), "another dimension than the channels'"),
        (
            lambda m, x: m.head(m.a(x).flatten(2).softmax(2)[:, :, :64].view(len(IMAGES), 8, 8, 8)),
            "do not fit",
        ),
    ],
)
def test_other_cuts_are_refused_in_words(call, words):
    model = Net(call, a=convolution(3, 8), a2=convolution(3, 8), head=convolution(8, 2))
    gates.attach(model, "a")
    with torch.no_grad():
        model.a.gate.log_alpha[0] = -5.0
    with pytest.raises(gates.HarvestError, match=words):
        gates.harvest(model, IMAGES)
