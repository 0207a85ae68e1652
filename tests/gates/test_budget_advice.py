"""What a budget says of gates that can take nothing out, before anybody has trained them; and how long times take."""

import pytest
import torch
from gates.transformers_tiny import gpt2
from torch import nn
from torch.nn import functional

from nupi import gates
from nupi.gates.budgets import latency

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Two linear layers with something between them, and another pair that can always be pruned."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 32), nn.Linear(16, 8), nn.Linear(8, 3)
        self.function = function

    def forward(self, x):
        return self.c(functional.relu(self.b(self.function(self.a(x)))))


def gated(*names):
    model = Between(functional.glu)
    gates.attach(model, names)
    return model


def test_a_limit_out_of_reach_is_refused_with_the_reason():
    with pytest.raises(
        ValueError,
        match=r"channels of .a. cannot be removed: one of them goes into glu\(\), which harvest does not support; gate",
    ):
        gates.budget(gated("a"), X, flops=0.5)


def test_a_limit_that_other_gates_reach_comes_with_a_warning():
    with pytest.warns(
        UserWarning, match=r"channels of 'a' cannot be removed: .* glu\(\).* partial=True to harvest"
    ):
        budget = gates.budget(gated("a", "b"), X, flops=0.9)
    assert budget.smallest < 0.9


def test_many_reasons_are_counted():
    model = nn.Sequential(*[each for _ in range(5) for each in (nn.Linear(8, 8), nn.Softmax(-1))])
    gates.attach(model, [str(2 * i) for i in range(5)])
    with pytest.raises(
        ValueError, match=r"'4' cannot be removed: .*; and those of 2 more layers; gate other"
    ):
        gates.budget(model, X, flops=0.5)


def test_without_such_gates_there_is_only_the_limit():
    with pytest.raises(ValueError, match=r"of the network is left; gate more layers, or raise the limit"):
        gates.budget(gated("b"), X, flops=0.5)


def test_layers_of_the_same_form_are_measured_once(monkeypatch):
    timed = []

    def seconds(module, _inputs):
        timed.append(module)
        return 1e-6

    monkeypatch.setattr(latency, "_seconds", seconds)
    model, words = gpt2()
    gates.attach_transformer(model)
    gates.budget(model, words, latency=1.0)
    # Four forms of layer, of the same two blocks, and the whole.
    assert len(timed) == latency.ROUNDS * (4 * latency.POINTS**2 + 1)
