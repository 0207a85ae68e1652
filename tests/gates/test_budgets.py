"""Budgets against harvests, against sampled gates, and at the end of a training."""

import pytest
import torch
from gates.networks import ARCHITECTURES, IMAGES, chain, convolution, gated, residual
from gates.transformers_tiny import gpt2, llama
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import nupi
from nupi import gates
from nupi.gates.budgets.fitting import filled, strongest
from nupi.gates.budgets.latency import Latency, points
from nupi.gates.budgets.parts import Network, Part, always
from nupi.gates.harvesting.conditions import ALWAYS, NEVER, Conditions
from nupi.paper.sparsity.resnet import GATED, ResNet18


@pytest.mark.parametrize("unit", ["parameters", "flops"])
@pytest.mark.parametrize("build", ARCHITECTURES, ids=lambda build: build.__name__)
def test_the_realised_share_is_what_a_harvest_leaves(build, unit):
    model = gated(build)
    budget = gates.budget(model, IMAGES, **{unit: 1.0})
    small = gates.harvest(model, IMAGES, repeats=1)
    share = getattr(small.after, unit) / getattr(small.before, unit)
    assert budget.realised().item() == pytest.approx(share, rel=1e-6)
    assert share < 1


@pytest.mark.parametrize("build", [chain, residual], ids=lambda build: build.__name__)
def test_the_expected_share_is_the_mean_over_harvests_of_sampled_gates(build):
    model = gated(build)
    budget = gates.budget(model, IMAGES, parameters=1.0)
    expected, probabilities = (
        budget.expected().item(),
        [g.gate.probability() for g in gates.gated_layers(model).values()],
    )
    torch.manual_seed(1)
    shares = []
    for _ in range(400):
        with torch.no_grad():
            for layer, p in zip(gates.gated_layers(model).values(), probabilities, strict=True):
                layer.gate.log_alpha.copy_(torch.where(torch.rand_like(p) < p, 9.0, -9.0))
        shares.append(budget.realised())
    shares = torch.stack(shares)
    assert abs(shares.mean().item() - expected) < 4 * shares.std().item() / 400**0.5


def test_closing_a_gate_costs_its_weights_in_both_neighbours():
    """Five plain lines: a 5-7-3 network of linear layers has (5 + 1) w + (w + 1) 3 parameters with w units."""
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    gates.attach(model, "0")
    budget = gates.budget(model, torch.randn(2, 5), parameters=0.5)
    p = model[0].gate.probability()
    width = p.sum().item()
    assert budget.expected().item() == pytest.approx((6 * width + 3 * (width + 1)) / 66, rel=1e-6)
    budget().backward()
    slope = 9 / 66 * p * (1 - p)  # the derivative of the sigmoid
    torch.testing.assert_close(model[0].gate.log_alpha.grad, slope.detach())


def test_neighbouring_gates_multiply():
    model = nn.Sequential(
        nn.Linear(5, 6, bias=False), nn.Linear(6, 4, bias=False), nn.Linear(4, 2, bias=False)
    )
    gates.attach(model, ["0", "1"])
    budget = gates.budget(model, torch.randn(2, 5), flops=0.5)
    with torch.no_grad():
        for layer in model[:2]:
            layer.gate.log_alpha.normal_()
    u, v = (layer.gate.probability().sum().item() for layer in model[:2])
    assert budget.expected().item() == pytest.approx((5 * u + u * v + 2 * v) / (30 + 24 + 8), rel=1e-6)


def test_a_sum_of_two_gated_layers_keeps_a_channel_that_either_needs():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = (nn.Linear(3, 4, bias=False) for _ in range(3))
            self.head = nn.Linear(4, 2, bias=False)

        def forward(self, x):
            return self.head(self.a(x) + self.b(x))

    model = Sum()
    gates.attach(model, ["a", "b"])
    budget = gates.budget(model, torch.randn(2, 3), parameters=0.9)
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.gate.log_alpha.normal_(-1.6)
    p, q = (layer.gate.probability() for layer in (model.a, model.b))
    width = (1 - (1 - p) * (1 - q)).sum().item()
    assert budget.expected().item() == pytest.approx(width * 8 / 32, rel=1e-6)


def train(model, budget, images, labels, steps=500):
    weights = torch.optim.SGD(gates.weight_parameters(model), lr=0.05, momentum=0.9)
    gate = torch.optim.Adam(gates.gate_parameters(model), lr=0.05, betas=(0.9, 0.95))
    lagrangian = nupi.Lagrangian({"size": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.05, kp=5.0, init="bumpless")
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        violations = {"size": budget()}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        for optimizer in (weights, gate):
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("unit", ["parameters", "flops"])
def test_a_training_ends_within_a_point_of_its_budget_by_a_count_of_the_exported_program(unit):
    torch.manual_seed(0)
    model, _, names = two_convolutions()
    images = torch.randn(32, 3, 4, 4)
    labels = 2 * (images[:, 0].mean((1, 2)) > 0).long() + (images[:, 1, :2].mean((1, 2)) > 0).long()
    dense = counted(model, images, unit)
    gates.attach(model, names, droprate_init=0.05, clamp=4.6)
    budget = gates.budget(model, images, **{unit: 0.5})
    train(model, budget, images, labels)
    small = torch.export.export(gates.harvest(model, images, repeats=1).model, (images,))
    assert counted(small.module(), images, unit) / dense == pytest.approx(0.5, abs=0.01)


def counted(model, images, unit):
    if unit == "parameters":
        return sum(each.numel() for each in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter.get_total_flops()


def test_trimming_keeps_the_budget_and_closes_the_weakest():
    model = gated(chain)
    budget = gates.budget(model, IMAGES, parameters=0.25)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(1.0, 2.0)
    before = torch.cat(list(gates.gate_parameters(model))).detach().clone()
    assert budget() > 0
    count = budget.trim()
    after = torch.cat(list(gates.gate_parameters(model)))
    changed = before != after
    assert changed.sum() == count > 0
    assert budget() <= 0
    assert before[changed].max() < before[~changed & (before > -1.5)].min()
    assert budget.trim() == 0


def two_convolutions():
    first, second = ((convolution(i, o), nn.BatchNorm2d(o), nn.ReLU()) for i, o in ((3, 64), (64, 96)))
    model = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 4))
    return model, IMAGES, ["0", "3"]


def small_resnet():
    return ResNet18(16), IMAGES, GATED


def small_gpt2():
    return *gpt2(), None


def small_llama():
    return *llama(), None


@pytest.mark.parametrize(
    ("unit", "limit", "location"),
    [("parameters", 0.7, -4.0), ("flops", 0.5, 4.0)],
    ids=["parameters from below", "flops from above"],
)
@pytest.mark.parametrize(
    "build", [two_convolutions, small_resnet, small_gpt2, small_llama], ids=lambda build: build.__name__
)
def test_after_fitting_the_exported_program_is_within_a_point_below_the_budget(build, unit, limit, location):
    torch.manual_seed(0)
    model, example, names = build()
    if names is None:
        model.config.use_cache = False  # torch.export has no form for a cache
    dense = counted(model.eval(), example, unit)
    gates.attach_transformer(model) if names is None else gates.attach(model, names)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(location, 2.0)
    gates.budget(model, example, **{unit: limit}).fit()
    small = torch.export.export(gates.harvest(model, example, repeats=1).model, (example,))
    assert limit - 0.01 < counted(small.module(), example, unit) / dense <= limit + 1e-6


def test_fitting_opens_the_strongest_first_and_changes_the_outputs_little():
    torch.manual_seed(0)
    model, images, names = two_convolutions()
    gates.attach(model.eval(), names)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(-2.0, 2.0)
    before, outputs = torch.cat(list(gates.gate_parameters(model))).detach().clone(), model(images)
    budget = gates.budget(model, images, parameters=0.9)
    count = budget.fit()
    changed = before != torch.cat(list(gates.gate_parameters(model)))
    assert changed.sum() == count > 20
    assert before[changed].min() > before[~changed & (before < -1.6)].max() - 0.1
    torch.testing.assert_close(model(images), outputs, rtol=0.02, atol=0.02)
    assert budget.fit() == 0


def test_a_gate_that_is_too_large_is_passed_over_for_smaller_ones():
    """Three gates of 50, 30 and 15 parts of 100, and a limit of 70: by order 50 alone, with the fill 50 + 15."""
    sizes = torch.tensor([50.0, 30.0, 15.0])
    order = torch.arange(3)
    assert strongest(order, lambda chosen: sizes[chosen].sum() / 100, 0.7).tolist() == [0]
    assert filled(order, lambda chosen: sizes[chosen].sum() / 100, 0.7).tolist() == [0, 2]


def test_latency_by_a_real_clock_never_rises_as_gates_close(monkeypatch):
    monkeypatch.setattr("nupi.gates.budgets.latency.SECONDS", 1e-4)
    model = gated(chain)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(9.0)
    budget = gates.budget(model, IMAGES, latency=1.0)
    assert budget.realised().item() == pytest.approx(1.0, abs=1e-5)
    budget().backward()
    for phi in gates.gate_parameters(model):
        assert phi.grad.isfinite().all()
        assert (phi.grad >= 0).all()
    assert budget.smallest <= 1


def one_layer(gated):
    conditions = Conditions()
    channels = torch.tensor([conditions.gate(each) for each in range(gated)])
    network = Network([Part("a", always(8), channels, (1, 0), (1, 0))], conditions)
    return network, torch.tensor([[points(8)], [points(gated)]], dtype=torch.float64)


def test_latency_is_read_off_the_table():
    """A table that is linear in both widths is interpolated without error."""
    network, places = one_layer(8)
    latency = Latency(network, places[1].clamp(max=8).expand(1, 8, 8), places, 0.0, torch.ones(1).double())
    p = torch.rand(8, dtype=torch.float64)
    assert latency(p).item() == pytest.approx(max(p.sum().item(), 1) / 8)


def test_latency_has_the_steps_of_the_table():
    """33 to 48 of 64 channels take three quarters of the time, 32 take half of it."""
    network, places = one_layer(64)
    table = torch.ceil(places[1] / 16).expand(1, 8, 8)
    latency = Latency(network, table, places, 0.0, torch.ones(1).double())
    for count, share in ((64, 1.0), (49, 1.0), (48, 0.75), (40, 0.75), (33, 0.75), (32, 0.5), (1, 0.25)):
        assert latency((torch.arange(64) < count).double()).item() == pytest.approx(share)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (3, 1), (12, 4), (24, 6), (64, 1), (100, 1), (512, 1)])
def test_points_are_whole_groups_up_to_the_whole_width(count, size):
    found = points(count, size)
    assert len(found) == 8
    assert found == sorted(set(found))
    inside = [each for each in found if each <= count]
    assert count in inside
    assert all(each % size == 0 for each in inside)


def test_noise_never_makes_a_narrower_layer_the_slower_one():
    """A clock that is all noise: the whole takes 1 ms, and half of the narrower layers were measured slower."""
    network, places = one_layer(4)
    table = 1e-3 * (0.5 + torch.rand(1, 8, 8, dtype=torch.float64))
    table[0, 7:, 3:] = table[0, :, 3:] = table[0, 7:, :] = 1e-3
    latency = Latency(network, table, places, 0.0, torch.ones(1, dtype=torch.float64))
    shares = [latency((torch.arange(4) < count).double()).item() for count in range(5)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert shares[0] >= table.min().item() / 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "none came"),
        ({"flops": 0.5, "parameters": 0.5}, "parameters and flops came"),
        ({"flops": 50}, "must be a share"),
        ({"flops": float("nan")}, "must be a share"),
        ({"parameters": 0.01}, "cannot be reached"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        gates.budget(gated(residual), IMAGES, **options)


def test_gates_on_weights_are_refused():
    with pytest.raises(ValueError, match="single weights of 'conv1'"):
        gates.budget(gated(residual, unit="weight"), IMAGES, parameters=0.5)


def test_a_budget_says_where_it_stands():
    assert repr(gates.budget(gated(residual), IMAGES, parameters=0.9)).startswith("Budget(parameters=0.9: 0.")


conditions = st.recursive(
    st.integers(0, 4), lambda inner: st.tuples(st.sampled_from(["every", "some"]), inner, inner), max_leaves=8
)


@settings(max_examples=settings.default.max_examples)
@given(conditions, st.lists(st.booleans(), min_size=5, max_size=5))
def test_conditions_have_the_truth_values_of_the_expressions_they_stand_for(expression, opened):
    known = Conditions()

    def number(part):
        return (
            known.gate(part)
            if isinstance(part, int)
            else known.join(part[0], number(part[1]), number(part[2]))
        )

    def truth(part):
        if isinstance(part, int):
            return opened[part]
        return (all if part[0] == "every" else any)([truth(part[1]), truth(part[2])])

    found = number(expression)
    values = known.evaluation()(torch.tensor(opened, dtype=torch.float64))
    assert values[found].item() == truth(expression)
    assert (values[NEVER], values[ALWAYS]) == (0, 1)
