"""Grouped convolutions, whose groups go as a whole, and norms over channels that have no gates of their own."""

import pytest
import torch
from gates.networks import IMAGES, Net, convolution, lived_in
from torch import nn

from nupi import gates
from nupi.gates.budgets import latency


def bottleneck(groups=4, norm=True):
    """A block of ResNeXt: a convolution in front, one in groups, one behind."""

    def call(m, x):
        y = m.a(x).relu()
        return m.last(m.norm(m.grouped(y)).relu())

    layers = {"a": convolution(3, 16), "grouped": convolution(16, 24, groups=groups, bias=not norm)}
    layers |= {"norm": nn.BatchNorm2d(24) if norm else nn.Identity(), "last": convolution(24, 2)}
    return lived_in(Net(call, **layers)).eval()


def close(model, *numbers):
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(1.0)
            phi[list(numbers)] = -5.0


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("norm", [True, False])
def test_a_grouped_convolution_has_a_gate_a_group_and_takes_the_channels_in_front_along(norm, place):
    torch.manual_seed(0)
    model = bottleneck(norm=norm)
    assert gates.attach(model, "grouped", place=place) == ["grouped"]
    (phi,) = gates.gate_parameters(model)
    assert phi.shape == (4,)
    assert gates.gated_layers(model)["grouped"].gated_parameters() == 24 * 4 * 9 + (0 if norm else 24)
    close(model, 1, 2)
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    assert (small.model.grouped.groups, small.model.grouped.in_channels) == (2, 8)
    assert (small.model.a.out_channels, small.model.last.in_channels) == (8, 12)


@pytest.mark.parametrize("unit", ["parameters", "flops"])
def test_a_budget_counts_groups_as_the_harvest_does(unit):
    model = bottleneck()
    gates.attach(model, "grouped")
    close(model, 3)
    budget = gates.budget(model, IMAGES, **{unit: 0.9})
    small = gates.harvest(model, IMAGES, repeats=1)
    assert budget.realised().item() == pytest.approx(getattr(small.after, unit) / getattr(small.before, unit))


def test_a_gated_layer_in_front_loses_whole_groups_and_half_a_group_is_refused():
    model = bottleneck(norm=False)
    gates.attach(model, "a")
    close(model, 0, 1, 2, 3, 4)
    with torch.no_grad():
        model.grouped.bias.zero_()
    with pytest.raises(gates.HarvestError, match="in a group of 'grouped', which stays or goes as a whole"):
        gates.harvest(model, IMAGES)
    close(model, 0, 1, 2, 3)
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    assert (small.model.a.out_channels, small.model.grouped.groups) == (12, 3)


def test_several_outputs_for_each_input_go_together():
    model = Net(
        lambda m, x: m.last(m.grouped(m.a(x))),
        a=convolution(3, 6),
        grouped=convolution(6, 12, groups=6, bias=False),
        last=convolution(12, 2),
    ).eval()
    gates.attach(model, "grouped")
    close(model, 0, 5)
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    assert (small.model.a.out_channels, small.model.grouped.groups, small.model.grouped.out_channels) == (
        4,
        4,
        8,
    )


def test_groups_of_the_input_are_refused():
    model = nn.Sequential(convolution(3, 6, groups=3), nn.ReLU(), convolution(6, 2))
    gates.attach(model, "0")
    close(model, 0)
    with pytest.raises(gates.HarvestError, match="stay or go with its input channels"):
        gates.harvest(model, IMAGES)


def norm_behind_an_activation(norm):
    """The gates sit in front of the activation, the norm behind it has none."""
    return Net(
        lambda m, x: m.head(m.norm(m.a(x.flatten(1)).relu())),
        a=nn.Linear(192, 10),
        norm=norm,
        head=nn.Linear(10, 3),
    ).eval()


@pytest.mark.parametrize("eps", [None, 1e-6, 0.1])
def test_an_rms_norm_without_gates_is_rescaled(eps):
    torch.manual_seed(0)
    model = norm_behind_an_activation(nn.RMSNorm(10, eps=eps))
    nn.init.normal_(model.norm.weight)
    gates.attach(model, "a", norms={"a": None})
    close(model, 0, 2, 9)
    small = gates.harvest(model, IMAGES, repeats=1)
    tiny = 1e-3 * IMAGES  # where epsilon counts
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(small.model(tiny), model(tiny), rtol=1e-5, atol=1e-6)
    assert small.model.norm.normalized_shape == (7,)


def test_what_an_rms_norm_counts_stays_although_its_weight_is_zero():
    model = norm_behind_an_activation(nn.RMSNorm(10))
    with torch.no_grad():
        model.norm.weight[4] = 0.0
    gates.attach(model, "a", norms={"a": None})
    close(model, 1)
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)
    assert small.model.norm.normalized_shape == (9,)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (nn.LayerNorm(10), "closed ones too, and subtracts it; put the gates into it"),
        (nn.RMSNorm(10, elementwise_affine=False), "no weight to correct for it"),
        (nn.GroupNorm(5, 10), "in a group of 'norm', which stays or goes as a whole"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_norms_without_gates_that_would_change_are_named(norm, words):
    model = norm_behind_an_activation(norm)
    gates.attach(model, "a", norms={"a": None})
    close(model, 0)
    with pytest.raises(gates.HarvestError, match=words):
        gates.harvest(model, IMAGES)


def test_a_group_norm_without_an_affine_map_loses_whole_groups():
    model = norm_behind_an_activation(nn.GroupNorm(5, 10, affine=False))
    gates.attach(model, "a", norms={"a": None})
    close(model, 0, 1, 6, 7)
    small = gates.harvest(model, IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)
    assert small.model.norm.num_groups == 3


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 24), nn.BatchNorm2d(24)])
def test_latency_is_measured_at_whole_groups(norm, monkeypatch):
    monkeypatch.setattr(latency, "SECONDS", 1e-4)
    model = bottleneck()
    model.norm = norm
    gates.attach(model, "grouped")
    close(model, 1)
    assert gates.budget(model, IMAGES, latency=1.0).realised() > 0  # a width that is no multiple would raise


def test_latency_of_a_layer_norm_is_measured_along_its_channels(monkeypatch):
    monkeypatch.setattr(latency, "SECONDS", 1e-4)
    model = Net(
        lambda m, x: m.b(m.norm(m.a(x))), a=nn.Linear(8, 16), norm=nn.LayerNorm(16), b=nn.Linear(16, 2)
    )
    gates.attach(model, "a")
    close(model, 1)
    assert gates.budget(model, IMAGES, latency=1.0).realised() > 0
