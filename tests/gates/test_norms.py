"""Layer, RMS and group norms with gates, and convolutions in one dimension."""

import pytest
import torch
from gates.networks import IMAGES, Net
from torch import nn
from torch.nn import functional

from nupi import gates

ROWS = torch.randn(6, 5, 10, generator=torch.Generator().manual_seed(0))


def shaken(model, seed=0):
    """Norms as after a training, and half of the gates closed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.BatchNorm1d):
                for parameter in module.parameters(recurse=False):
                    parameter.normal_(0.5)
        for layer in gates.gated_layers(model).values():
            layer.gate.log_alpha.normal_(-1.6, 2.0)
            layer.gate.log_alpha[0] = 2.0
            layer.gate.log_alpha[-1] = -4.0
    return model.eval()


def mlp(norm, **options):
    return nn.Sequential(nn.Linear(10, 12), norm(12, **options), nn.GELU(), nn.Linear(12, 4)), ROWS


def norm_behind_the_activation():
    return nn.Sequential(nn.Linear(10, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 4)), ROWS


def grouped_norm():
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.SiLU(), nn.Conv2d(12, 2, 3)), IMAGES


def signal():
    layers = (nn.Conv1d(5, 12, 3, padding=1), nn.BatchNorm1d(12), nn.ReLU(), nn.MaxPool1d(2))
    return nn.Sequential(*layers, nn.Conv1d(12, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)), ROWS


CASES = {
    "layer": (lambda: mlp(nn.LayerNorm), ["0"], None),
    "layer without bias": (lambda: mlp(nn.LayerNorm, bias=False), ["0"], None),
    "layer without weights": (lambda: mlp(nn.LayerNorm, elementwise_affine=False), ["0"], None),
    "rms": (lambda: mlp(nn.RMSNorm), ["0"], None),
    "rms without weights": (lambda: mlp(nn.RMSNorm, elementwise_affine=False, eps=1e-6), ["0"], None),
    "behind the activation": (norm_behind_the_activation, ["0"], {"0": "2"}),
    "group": (grouped_norm, ["0"], None),
    "one dimension": (signal, ["0", "4"], None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_harvest_computes_the_same_and_the_budget_knows_its_size(case):
    build, names, norms = CASES[case]
    model, example = build()
    gates.attach(model, names, norms=norms)
    shaken(model)
    budget = gates.budget(model, example, parameters=1.0)
    small = gates.harvest(model, example, repeats=1)
    torch.testing.assert_close(small.model(example), model(example), rtol=1e-5, atol=1e-5)
    assert small.after.parameters < small.before.parameters
    assert budget.realised().item() == pytest.approx(
        small.after.parameters / small.before.parameters, rel=1e-6
    )
    again = torch.randn_like(example)
    torch.testing.assert_close(small.model(again), model(again), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6, eps=1e-5)], ids=["layer", "rms"])
def test_open_channels_are_normed_as_if_they_were_alone(norm, place):
    """The oracle is torch's own norm on the open channels."""
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    gated = gates.GatedLayerNorm if isinstance(norm, nn.LayerNorm) else gates.GatedRMSNorm
    gate = gates.HardConcrete(6)
    layer = gated(norm, gate, place=place).eval()
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor([5.0, -5.0, 0.2, 5.0, -5.0, 1.0]))
    x, which, z = torch.randn(3, 6), gate.is_open(), gate.median().detach()
    given = (x * z if place == "before" else x)[:, which]
    behind = torch.ones(4) if place == "before" else z[which]
    if isinstance(norm, nn.LayerNorm):
        expected = functional.layer_norm(given, (4,), norm.weight[which], norm.bias[which]) * behind
    else:
        expected = functional.rms_norm(given, (4,), norm.weight[which], 1e-5) * behind
    torch.testing.assert_close(layer(x)[:, which], expected, rtol=1e-5, atol=1e-5)
    assert not layer(x)[:, ~which].any()


def test_a_group_goes_as_a_whole():
    model, example = grouped_norm()
    gates.attach(model, "0")
    shaken(model)
    open_groups = int(model[1].gate.is_open().sum())
    small = gates.harvest(model, example, repeats=1).model
    assert (small[1].num_groups, small[1].num_channels) == (open_groups, 3 * open_groups)
    assert small[0].out_channels == 3 * open_groups


def test_gates_get_gradients_through_every_norm():
    for case in ("layer", "rms", "group"):
        model, example = CASES[case][0]()
        gates.attach(model, "0")
        with torch.no_grad():
            next(gates.gate_parameters(model)).zero_()
        model.train()(example).square().mean().backward()
        assert all(phi.grad.isfinite().all() and phi.grad.any() for phi in gates.gate_parameters(model))


def test_bfloat16_keeps_its_dtype():
    norm = gates.GatedLayerNorm(nn.LayerNorm(4), gates.HardConcrete(4)).to(torch.bfloat16)
    assert norm(torch.randn(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_plain_layer_norm_keeps_its_channels_and_says_why():
    model, example = norm_behind_the_activation()
    gates.attach(model, "0", norms={"0": None})
    shaken(model)
    with pytest.raises(gates.HarvestError, match="takes its mean over all channels"):
        gates.harvest(model, example)


def test_gates_before_a_layer_norm_are_not_harvested():
    model, example = CASES["layer"][0]()
    gates.attach(model, "0", place="before")
    with pytest.raises(gates.HarvestError, match="attach them with place='after'"):
        gates.harvest(shaken(model), example)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (nn.SyncBatchNorm(12), "statistics are those of each process"),
        (nn.InstanceNorm1d(12), "gated forms have BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm"),
        (nn.LayerNorm((5, 12)), "takes its mean over space too"),
    ],
    ids=["sync", "instance", "space"],
)
def test_norms_without_a_gated_form_are_refused(norm, words):
    model = nn.Sequential(nn.Linear(10, 12), norm, nn.Linear(12, 4))
    with pytest.raises(ValueError, match=words):
        gates.attach(model, "0")
    assert not any(isinstance(module, gates.Gated) for module in model.modules())


def test_the_wrong_number_of_gates_is_refused():
    with pytest.raises(ValueError, match=r"needs HardConcrete\(4\)"):
        gates.GatedGroupNorm(nn.GroupNorm(4, 12), gates.HardConcrete(12))


def test_a_model_without_layers_to_gate_is_said_to_have_none():
    with pytest.raises(ValueError, match="and the model has none"):
        gates.attach(nn.Sequential(nn.ReLU()), "0")


@pytest.mark.parametrize("stretch", [(-float("inf"), 1.1), (-0.1, float("inf")), (float("nan"), 1.1)])
def test_a_stretch_that_is_not_finite_is_refused(stretch):
    with pytest.raises(ValueError, match="must be finite and reach beyond"):
        gates.HardConcrete(3, stretch=stretch)


def test_networks_by_hand_still_work():
    model = Net(lambda m, x: m.b(torch.relu(m.a(x))), a=nn.Conv1d(5, 7, 1), b=nn.Conv1d(7, 2, 1))
    gates.attach(model, "a")
    shaken(model)
    small = gates.harvest(model, ROWS, repeats=1).model
    torch.testing.assert_close(small(ROWS), model(ROWS), rtol=1e-5, atol=1e-5)
