"""Densities against counts by hand, and as constraints that a small training meets."""

import pytest
import torch
from scipy.special import expit
from torch import nn

import nupi
from nupi import gates

SHIFT = 2 / 3 * 2.3978952727983707  # temperature times log 11


def model_with(*locations, unit="channel"):
    """Linear layers of 5 -> 4 -> 3 -> 2 with gates on the first two."""
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2))
    gates.attach(model, ["0", "2"], unit=unit)
    with torch.no_grad():
        for layer, values in zip(gates.gated_layers(model).values(), locations, strict=True):
            layer.gate.log_alpha.copy_(torch.tensor(values).expand_as(layer.gate.log_alpha))
    return model


def test_channels_are_counted_with_their_biases():
    first, second = [-9.0, -2.0, 0.0, 3.0], [-1.0, -1.7, 9.0]
    model = model_with(first, second)
    expected = [6 * sum(expit(p + SHIFT) for p in first), 4 * sum(expit(p + SHIFT) for p in second)]
    realised = [6 * 2, 4 * 2]  # open where phi > -SHIFT = -1.6
    gated, everything = 6 * 4 + 4 * 3, 24 + 12 + 8
    for kind, (a, b) in (("expected", expected), ("realised", realised)):
        assert gates.density(model, kind=kind).item() == pytest.approx((a + b) / gated, rel=1e-6)
        assert gates.density(model, kind=kind, over="all").item() == pytest.approx(
            (a + b + 8) / everything, rel=1e-6
        )
        for over in ("gated", "all"):  # every parameter of these layers is some channel's
            found = gates.layer_densities(model, kind=kind, over=over)
            assert found.tolist() == pytest.approx([a / 24, b / 12], rel=1e-6)


def test_weights_are_counted_one_by_one():
    model = model_with([[0.0]], [[-3.0]], unit="weight")
    assert gates.density(model).item() == pytest.approx(
        (20 * expit(SHIFT) + 12 * expit(SHIFT - 3)) / 32, rel=1e-6
    )
    assert gates.density(model, kind="realised").item() == pytest.approx(20 / 32)
    by_layer = [20 * expit(SHIFT) / 20, 12 * expit(SHIFT - 3) / 12]
    assert gates.layer_densities(model).tolist() == pytest.approx(by_layer, rel=1e-6)
    with_biases = [(20 * expit(SHIFT) + 4) / 24, expit(SHIFT - 3)]  # the second layer has none
    assert gates.layer_densities(model, over="all").tolist() == pytest.approx(with_biases, rel=1e-6)


@pytest.mark.parametrize("place", ["before", "after"])
def test_gates_in_a_norm_count_the_layer_in_front_of_it(place):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    gates.attach(model, "0", place=place)
    with torch.no_grad():
        gates.gated_layers(model)["0"].gate.log_alpha.copy_(torch.tensor([-9.0, 0.0, 0.0, 0.0]))
    for over in ("gated", "all"):
        assert gates.layer_densities(model, kind="realised", over=over).tolist() == [0.75]
    everything = 4 * 28 + 2 * 4 + 2 * 5
    assert gates.density(model, kind="realised", over="all").item() == pytest.approx(1 - 28 / everything)


@pytest.mark.parametrize("kind", ["expected", "realised"])
def test_both_kinds_have_the_gradient_of_the_expected_density(kind):
    model = model_with([-9.0, -2.0, 0.0, 3.0], [-1.0, -1.7, 9.0])
    gradients = torch.autograd.grad(
        gates.density(model, kind=kind, over="gated"), list(gates.gate_parameters(model))
    )
    h = 1e-4
    for gradient, layer, each in zip(gradients, gates.gated_layers(model).values(), (6, 4), strict=True):
        for i, phi in enumerate(layer.gate.log_alpha.tolist()):
            slope = each * (expit(phi + SHIFT + h) - expit(phi + SHIFT - h)) / (2 * h) / 36
            assert gradient[i].item() == pytest.approx(slope, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_training_meets_its_density(layerwise):
    """The four lines of the README on a regression that can do with half of what it has."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = torch.relu(x @ torch.randn(8, 6)) @ torch.randn(6, 1) / 5
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    gates.attach(model, ["0", "2"], droprate_init=0.05, clamp=4.6)
    primal = torch.optim.Adam(
        [{"params": gates.weight_parameters(model)}, {"params": gates.gate_parameters(model), "lr": 0.05}],
        lr=0.01,
    )
    lagrangian = nupi.Lagrangian({"density": nupi.Inequality(2 if layerwise else 1)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.02, kp=2.0, init="zero", form="velocity")
    for _ in range(600):
        loss = (model(x) - y).square().mean()
        measure = gates.layer_densities(model) if layerwise else gates.density(model)
        violations = {"density": measure - 0.5}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    assert measure.max().item() < 0.52
    assert layerwise or measure.item() > 0.4
    assert loss.item() < 0.05 * y.square().mean().item()


def test_refusals():
    with pytest.raises(ValueError, match="has no gated layers"):
        gates.density(nn.Linear(3, 4))
    model = model_with([0.0] * 4, [0.0] * 3)
    with pytest.raises(ValueError, match="kind='real'"):
        gates.density(model, kind="real")
    with pytest.raises(ValueError, match="over='everything'"):
        gates.density(model, over="everything")
    with pytest.raises(ValueError, match="over='layers'"):
        gates.layer_densities(model, over="layers")
