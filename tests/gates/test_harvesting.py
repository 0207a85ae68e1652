"""Harvest: the same outputs from a smaller model, for many shapes of network."""

import copy

import pytest
import torch
from gates.networks import ARCHITECTURES, IMAGES, chain, convolution, gated, residual, without_norms
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nupi import gates
from nupi.gates import harvest


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


@settings(max_examples=settings.default.max_examples // 2)
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
