"""Gated layers against the plain ones with the gate written out."""

import copy

import pytest
import torch
import torch.optim.swa_utils
from torch import nn

from nupi.gates import GatedBatchNorm1d, GatedBatchNorm2d, GatedConv2d, GatedLinear, HardConcrete

OPEN, CLOSED = 50.0, -50.0


def gate_of(*locations):
    gate = HardConcrete(len(locations))
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor(locations))
    return gate


def norm_with_history(kind, channels):
    """A norm that has seen something, so that a leak would show."""
    norm = kind(channels)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return norm


def both(layer, plain, x):
    """The layer's output, and the plain one's with the gate that the layer drew."""
    torch.manual_seed(0)
    output = layer(x)
    torch.manual_seed(0)
    return output, plain(x, layer.gate())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_structured_gates_scale_channels(bias, training):
    conv, linear = nn.Conv2d(3, 6, 3, padding=1, bias=bias), nn.Linear(5, 6, bias=bias)
    cases = [
        (
            GatedConv2d(conv, gate_of(CLOSED, -1.0, 0.0, 0.5, 1.0, OPEN)),
            torch.randn(4, 3, 8, 8),
            (1, -1, 1, 1),
        ),
        (GatedLinear(linear, gate_of(CLOSED, -1.0, 0.0, 0.5, 1.0, OPEN)), torch.randn(4, 5), (1, -1)),
    ]
    for layer, x, shape in cases:
        plain = conv if isinstance(layer, GatedConv2d) else linear
        output, expected = both(layer.train(training), lambda x, z, p=plain, s=shape: p(x) * z.view(s), x)
        assert torch.allclose(output, expected, atol=1e-6)
        assert not output[:, 0].any()
        assert layer.parameters_per_gate == plain.weight[0].numel() + bias


def test_unstructured_gates_scale_weights():
    conv, linear = nn.Conv2d(3, 6, 3, groups=3), nn.Linear(5, 6)
    for layer, plain, x in (
        (
            GatedConv2d(conv, HardConcrete(conv.weight.shape, droprate_init=0.5)),
            conv,
            torch.randn(2, 3, 8, 8),
        ),
        (
            GatedLinear(linear, HardConcrete(linear.weight.shape, droprate_init=0.5)),
            linear,
            torch.randn(2, 5),
        ),
    ):

        def written_out(x, z, plain=plain):
            twin = copy.deepcopy(plain)
            with torch.no_grad():
                twin.weight.mul_(z)
            return twin(x)

        output, expected = both(layer, written_out, x)
        assert torch.allclose(output, expected, atol=1e-6)
        assert layer.gated_parameters() == plain.weight.numel()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "gated"), [(nn.BatchNorm1d, GatedBatchNorm1d), (nn.BatchNorm2d, GatedBatchNorm2d)]
)
def test_gated_norms_are_the_formula(kind, gated, place, training):
    norm = norm_with_history(kind, 4)
    plain = copy.deepcopy(norm).train(training)
    layer = gated(norm, gate_of(CLOSED, 0.0, 1.0, OPEN), place=place).train(training)
    x = torch.randn(16, 4, *[5, 5][: 0 if kind is nn.BatchNorm1d else 2])

    def written_out(x, z):
        z = z.view(-1, *[1] * (x.dim() - 2))
        return plain(x * z) * (z > 0) if place == "before" else plain(x) * z

    output, expected = both(layer, written_out, x)
    assert torch.allclose(output, expected, atol=1e-5)
    assert torch.allclose(layer.running_var[1:], plain.running_var[1:], atol=1e-5)
    assert torch.allclose(layer.running_mean[1:], plain.running_mean[1:], atol=1e-5)
    assert torch.equal(layer.num_batches_tracked, plain.num_batches_tracked)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_closed_channel_leaves_no_trace(place):
    layer = GatedBatchNorm2d(norm_with_history(nn.BatchNorm2d, 3), gate_of(OPEN, CLOSED, OPEN), place=place)
    mean, variance = layer.running_mean.clone(), layer.running_var.clone()
    x = torch.randn(8, 3, 5, 5, requires_grad=True)
    output = layer(x)
    output.square().sum().backward()
    assert not output[:, 1].any()
    assert output[:, [0, 2]].any()
    assert layer.running_mean[1] == mean[1]
    assert layer.running_var[1] == variance[1]
    assert (layer.running_mean != mean).tolist() == [True, False, True]
    assert (layer.running_var != variance).tolist() == [True, False, True]
    for gradient in (layer.weight.grad[1], layer.bias.grad[1], x.grad[:, 1]):
        assert not gradient.any()
    assert not layer.eval()(x)[:, 1].any()


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_closed_channel_is_zero_even_where_the_norm_overflows(place):
    norm = GatedBatchNorm2d(nn.BatchNorm2d(2), gate_of(CLOSED, OPEN), place=place).half().eval()
    norm.running_var.fill_(1e-4)
    x = (torch.randn(4, 2, 3, 3) * 1000).half()
    assert nn.functional.batch_norm(x, norm.running_mean, norm.running_var).isinf().any()
    output = norm(x)
    assert not output[:, 0].any()
    assert output[:, 1].any()


def test_averages_over_batches_count_those_that_a_channel_was_open_in():
    """As `torch.optim.swa_utils.update_bn` asks for them; against the mean over batches, gate by gate."""
    torch.manual_seed(0)
    norm = GatedBatchNorm2d(norm_with_history(nn.BatchNorm2d, 3), gate_of(-1.0, 0.0, OPEN))
    model, batches = nn.Sequential(norm), [torch.randn(5, 3, 4, 4) + i for i in range(12)]
    drawn = []
    norm.gate.register_forward_hook(lambda *call: drawn.append(call[-1].detach() > 0))
    torch.optim.swa_utils.update_bn(batches, model)
    assert norm.momentum == 0.1
    opened = torch.stack(drawn)
    assert 0 < opened[:, 0].sum() < 12
    for channel in range(3):
        seen = [batch[:, channel] for batch, row in zip(batches, opened, strict=True) if row[channel]]
        mean, variance = (torch.stack([of(each) for each in seen]).mean() for of in (torch.mean, torch.var))
        torch.testing.assert_close(norm.running_mean[channel], mean)
        torch.testing.assert_close(norm.running_var[channel], variance)


def test_a_plain_norm_would_leak():
    """What the gated norm is for: behind a closed gate a plain one gives its bias, and forgets its statistics."""
    norm = norm_with_history(nn.BatchNorm2d, 3)
    mean = norm.running_mean.clone()
    output = norm(GatedConv2d(nn.Conv2d(3, 3, 1), gate_of(OPEN, CLOSED, OPEN))(torch.randn(8, 3, 5, 5)))
    assert torch.allclose(output[:, 1], norm.bias[1])
    assert norm.running_mean[1] == pytest.approx(0.9 * mean[1].item(), rel=1e-5)


def test_a_gate_is_trained_through_the_layer():
    layer = GatedLinear(nn.Linear(5, 4).double(), HardConcrete(4, droprate_init=0.5).double().eval())
    x = torch.randn(3, 5, dtype=torch.float64)

    def loss(phi):
        return torch.func.functional_call(layer, {"gate.log_alpha": phi}, (x,)).square().sum()

    layer.eval()
    assert torch.autograd.gradcheck(loss, layer.gate.log_alpha.detach().clone().requires_grad_())


def test_parameters_buffers_names_and_mode_are_taken_over():
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval()
    called = []
    norm.register_forward_hook(lambda *_: called.append(1))
    gated_conv, gated_norm = GatedConv2d(conv, HardConcrete(4)), GatedBatchNorm2d(norm, HardConcrete(4))
    assert gated_conv.weight is conv.weight
    assert gated_norm.running_mean is norm.running_mean
    assert set(gated_norm.state_dict()) == {*norm.state_dict(), "gate.log_alpha"}
    assert "gate" not in dict(norm.named_children())
    assert not gated_norm.training
    assert not gated_norm.gate.training
    assert isinstance(gated_conv, nn.Conv2d)
    gated_norm(torch.randn(2, 4, 3, 3))
    assert called == [1]


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_step_under_autocast(place):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        GatedBatchNorm2d(nn.BatchNorm2d(8), HardConcrete(8, droprate_init=0.4), place=place),
        nn.Flatten(),
        GatedLinear(nn.Linear(8 * 36, 4), HardConcrete((4, 288), droprate_init=0.4)),
    )
    x = torch.randn(4, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        assert output.dtype == torch.bfloat16
    output.float().square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model[1].gate.log_alpha.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    model = nn.Sequential(
        GatedConv2d(nn.Conv2d(3, 8, 3), HardConcrete(8)),
        GatedBatchNorm2d(nn.BatchNorm2d(8), HardConcrete(8), place="before"),
    ).to(dtype)
    output = model(torch.randn(4, 3, 8, 8, dtype=dtype))
    output.sum().backward()
    assert output.dtype == dtype
    assert model[0].gate.log_alpha.dtype == torch.promote_types(dtype, torch.float32)


def test_compiles_to_one_graph():
    model = nn.Sequential(
        GatedConv2d(nn.Conv2d(3, 8, 3), HardConcrete(8, droprate_init=0.05, clamp=4.6)),
        GatedBatchNorm2d(nn.BatchNorm2d(8), HardConcrete(8, droprate_init=0.05, clamp=4.6)),
    )
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="eager", fullgraph=True)
    x = torch.randn(4, 3, 8, 8)
    for _ in range(2):
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        assert torch.allclose(compiled(x), expected, atol=1e-6)
    assert torch.allclose(twin[1].running_mean, model[1].running_mean, atol=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match=r"shape \(5,\).*HardConcrete\(4\)"):
        GatedBatchNorm2d(nn.BatchNorm2d(4), HardConcrete(5))
    with pytest.raises(ValueError, match="place='inside'"):
        GatedBatchNorm2d(nn.BatchNorm2d(4), HardConcrete(4), place="inside")
    with pytest.raises(ValueError, match="momentum is None"):
        GatedBatchNorm2d(nn.BatchNorm2d(4, momentum=None), HardConcrete(4))
    with pytest.raises(ValueError, match="4 output channels"):
        GatedConv2d(nn.Conv2d(3, 4, 3), HardConcrete(3))
    with pytest.raises(TypeError, match="gated already"):
        GatedLinear(GatedLinear(nn.Linear(3, 4), HardConcrete(4)), HardConcrete(4))


def test_a_norm_cancels_the_scale_of_a_gate_before_it():
    """Why "after" is the default: before the norm, a gate that is partly open hardly feels the loss."""
    torch.manual_seed(0)
    x, target = torch.randn(32, 4, 5, 5), torch.randn(32, 4, 5, 5)
    felt = {}
    for place in ("before", "after"):
        layer = GatedBatchNorm2d(nn.BatchNorm2d(4), gate_of(0.0, 0.2, -0.2, 0.1), place=place)
        layer.gate.eval()  # the median: 0.5 or so, without noise
        (layer(x) - target).square().mean().backward()
        felt[place] = layer.gate.log_alpha.grad.abs().max().item()
    assert felt["before"] < 1e-3 * felt["after"]
