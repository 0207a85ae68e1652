"""Tracing: down the branches that a call takes, and without a trace in the model."""

import pickle
import random

import pytest
import torch
from torch import nn

from nupi import gates
from nupi.gates.graph import UntraceableError, trace


def called(graph):
    return [node.target for node in graph.nodes if node.op == "call_module"]


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)
        self.extra = nn.Conv2d(6, 6, 1)

    def forward(self, x, scale=None, deep=False, *rest, factor=2.0, **options):
        y = self.conv(x)
        if scale is not None:
            y = y * scale
        if deep:
            y = self.extra(y)
        for _ in rest:
            y = y + 1
        return self.head(self.norm(y).relu()) * factor * options.get("times", 1)


class AllOptional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x=None, mask=None):
        y = self.a(x)
        return self.b(y if mask is None else y * mask)


def test_the_first_argument_is_there():
    graph = trace(AllOptional())
    assert [node.target for node in graph.nodes if node.op.startswith("call")] == ["a", "b"]


def closed(model):
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.linspace(-9.0, 1.0, len(phi)))
    return model


def test_arguments_that_are_left_out_are_not_there():
    model = Optional()
    assert gates.attach(model, "conv") == ["conv"]
    assert isinstance(model.norm, gates.GatedBatchNorm2d)
    assert called(trace(model)) == ["conv", "norm", "head"]
    images = torch.randn(2, 3, 8, 8)
    result = gates.harvest(closed(model), images, repeats=1)
    assert result.channels["conv"] == (2, 6)
    others = torch.randn(3, 3, 9, 9)
    assert torch.allclose(result.model(others), model.eval()(others), atol=1e-6)


@pytest.mark.parametrize(
    ("rest", "layers"),
    [((None, True), ["conv", "extra", "norm", "head"]), ((torch.tensor(0.5),), ["conv", "norm", "head"])],
)
def test_arguments_that_are_given_decide(rest, layers):
    example = (torch.randn(2, 3, 8, 8), *rest)
    assert called(trace(Optional(), example)) == layers
    model = Optional()
    gates.attach(model, "conv", norms={"conv": "norm"})
    result = gates.harvest(closed(model), example, repeats=1, partial=True)
    others = (torch.randn(2, 3, 8, 8), *rest)
    assert torch.allclose(result.model(*others), model.eval()(*others), atol=1e-6)


class Keeps(nn.Module):
    """A forward pass that leaves all kinds of things behind."""

    def __init__(self, fails):
        super().__init__()
        self.a, self.b, self.fails, self.count, self.seen = nn.Linear(3, 4), nn.Linear(4, 2), fails, 0, []
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        y = self.a(x) * torch.rand(4) * torch.tensor(random.random())
        self.feature = y
        self.seen.append(y)
        self.count += 1
        self.steps += 1
        return self.b(y) if not self.fails or y.sum() > 0 else y


@pytest.mark.parametrize("fails", [False, True])
def test_tracing_leaves_the_model_and_the_random_numbers_as_they_were(fails):
    model = Keeps(fails)
    names, state = set(vars(model)), torch.get_rng_state()
    host = random.getstate()
    if fails:
        with pytest.raises(UntraceableError, match="Keeps"):
            trace(model)
    else:
        assert called(trace(model, (torch.randn(2, 3),))) == ["a", "b"]
    assert set(vars(model)) == names
    assert (model.count, model.seen, model.steps.item()) == (0, [], 0.0)
    assert random.getstate() == host
    pickle.dumps(model)
    if fails:
        assert torch.equal(torch.get_rng_state(), state)


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Same(nn.Conv2d):
    """Made differently, but torch's own layer in all it does."""

    def __init__(self, i, o):
        super().__init__(i, o, 3, padding=1)


class MyNorm(nn.BatchNorm2d):
    pass


def test_layers_made_from_torchs_are_seen_whole():
    model = nn.Sequential(Doubled(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    assert gates.attach(model, "0") == ["0"]
    assert isinstance(model[1], gates.GatedBatchNorm2d)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), MyNorm(4), nn.Conv2d(4, 2, 1))
    with pytest.raises(ValueError, match="'0' is followed by '1', a MyNorm"):
        gates.attach(model, "0")


def test_a_layer_made_from_torchs_is_narrowed_only_if_it_does_the_same():
    images = torch.randn(2, 3, 8, 8)
    for last, message in (
        (Same(6, 2), None),
        (Doubled(6, 2, 3), r"goes into '2' \(Doubled\), which harvest does not support"),
    ):
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), last)
        gates.attach(model, "0")
        closed(model)
        if message:
            with pytest.raises(gates.HarvestError, match=message):
                gates.harvest(model, images)
            continue
        result = gates.harvest(model, images, repeats=1)
        assert result.model[2].in_channels == 2
        assert torch.allclose(result.model(images), model.eval()(images), atol=1e-6)
