"""The paper's network: its counts, its gates, and what a harvest makes of it."""

import pytest
import torch
from torch import nn

from nupi import gates
from nupi.paper.sparsity.resnet import ResNet18, sparse_resnet18


def count(parameters):
    return sum(parameter.numel() for parameter in parameters)


def test_the_counts_are_the_papers():
    with torch.device("meta"):
        plain = ResNet18()
    model = sparse_resnet18()
    assert count(plain.parameters()) == 11_173_962
    assert count(gates.weight_parameters(model)) == 11_173_962
    layers = gates.gated_layers(model)
    assert list(layers) == [f"stage{stage}.{block}.conv1" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert sum(layer.gated_parameters() for layer in layers.values()) == 4_718_592
    first_convolutions = [model.get_submodule(name).weight.numel() for name in layers]
    assert [layer.gated_parameters() for layer in layers.values()] == first_convolutions
    assert count(gates.gate_parameters(model)) == 2 * (64 + 128 + 256 + 512)


def test_a_max_pool_halves_the_images_and_has_no_parameters():
    plain, pooled = ResNet18(4), ResNet18(4, max_pool=True)
    assert count(plain.parameters()) == count(pooled.parameters())
    images = torch.randn(2, 3, 32, 32)
    assert plain.stem(images).shape == (2, 4, 32, 32)
    assert pooled.stem(images).shape == (2, 4, 16, 16)
    pooled.load_state_dict(plain.state_dict())
    assert pooled(images).shape == (2, 10)


def test_density_over_all_parameters_has_a_floor():
    model = sparse_resnet18()
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(-50.0)
    assert gates.density(model).item() == pytest.approx(0.0, abs=1e-9)
    assert gates.density(model, over="all").item() == pytest.approx(0.578, abs=5e-4)


def test_it_starts_dense():
    model = sparse_resnet18(8)
    assert gates.density(model).item() > 0.99
    assert gates.density(model, kind="realised").item() == 1.0


@pytest.mark.parametrize("place", ["before", "after"])
def test_every_weight_and_every_gate_is_trained(place):
    torch.manual_seed(0)
    model = sparse_resnet18(4, place=place, droprate_init=0.4)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    loss = nn.functional.cross_entropy(model(images), labels) + gates.density(model)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("place", ["before", "after"])
def test_harvest(place):
    torch.manual_seed(0)
    model = sparse_resnet18(8, place=place)
    images = torch.randn(4, 3, 16, 16)
    for _ in range(3):
        model(images)  # running statistics that are not the initial ones
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(-2.0, 2.0)
    result = gates.harvest(model, images, repeats=1)
    widths = {name: layer.gate.is_open().sum().item() for name, layer in gates.gated_layers(model).items()}
    assert {name: result.channels[name][0] for name in widths} == widths
    assert torch.allclose(result.model(images), model.eval()(images), atol=1e-5)
    taken = sum(
        (len(block.gate.log_alpha) - widths[name]) * (9 * conv.in_channels + 9 * conv.out_channels + 2)
        for name, block in gates.gated_layers(model).items()
        for conv in [model.get_submodule(name)]
    )  # a channel is 9 weights an incoming one, 9 an outgoing one, and the norm's two
    assert result.before.parameters - result.after.parameters == taken
    exported = torch.export.export(result.model, (images,)).module()
    assert torch.allclose(exported(images), result.model(images), atol=1e-6)


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ValueError, match="width=0"):
        ResNet18(0)
