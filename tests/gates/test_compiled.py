"""Gated models under torch.compile: the same outputs, gradients and training as in eager mode."""

import pytest
import torch
import torch._inductor.config
from gates.networks import IMAGES, chain, gated
from gates.transformers_tiny import gpt2
from torch import nn

import nupi
from nupi import gates

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
INDUCTOR = pytest.param("inductor", marks=pytest.mark.nightly)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def convolutional():
    """Batch norms behind both gated convolutions."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()),
        nn.Linear(6 * 4 * 4, 3),
    )
    gates.attach(model, ["0", "3"], droprate_init=0.3, clamp=4.6)
    return model, IMAGES, lambda output: output.square().mean()


def transformer():
    model, words = gpt2()
    gates.attach_transformer(model, droprate_init=0.3, clamp=4.6)
    return model, words, lambda output: output.logits.square().mean()


def trained(build, backend=None, *, passes=1, size="density", steps=3):
    """Parameters and buffers after some steps on the Lagrangian; `passes` forward passes before each backward pass."""
    torch.manual_seed(0)
    model, example, number = build()
    net = torch.compile(model, backend=backend) if backend else model
    budget = gates.budget(model, example, flops=0.5)
    primal = torch.optim.SGD(model.parameters(), lr=0.1)
    lagrangian = nupi.Lagrangian({"size": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    torch.manual_seed(5)
    for _ in range(steps):
        loss = sum(number(net(example)) for _ in range(passes))
        violations = {"size": budget() if size == "budget" else gates.density(model) - 0.5}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    return {
        name: each.detach().clone()
        for name, each in [*model.named_parameters(), *model.named_buffers(), ("loss", loss)]
    }


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
@pytest.mark.parametrize(
    ("build", "passes", "size"),
    [(convolutional, 1, "density"), (convolutional, 2, "budget"), (transformer, 2, "density")],
    ids=["convolutions", "convolutions twice", "transformer twice"],
)
def test_training_a_compiled_model_is_training_the_plain_one(build, passes, size, backend):
    eager = trained(build, passes=passes, size=size)
    with torch._inductor.config.patch(fallback_random=True):  # gates draw their noise as eager code does
        compiled = trained(build, backend, passes=passes, size=size)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("build", [convolutional, transformer])
def test_training_goes_on_with_the_random_numbers_of_the_compiler(build):
    """With its own generator the compiler keeps `log_alpha` for the backward pass, so nothing may write to it."""
    start = trained(build, steps=1)
    after = trained(build, "inductor", passes=2)
    assert after["loss"].isfinite()
    assert all(not torch.equal(after[name], start[name]) for name in after if name.endswith("log_alpha"))


@pytest.mark.parametrize("compiled", [False, True])
def test_reading_gates_in_training_is_no_change_of_the_parameter_to_autograd(compiled):
    """A backward pass refuses a tensor that it has kept and whose version is another one by then."""
    gate = gates.HardConcrete(3, clamp=4.6)
    read = torch.compile(gate, backend="aot_eager") if compiled else gate
    version = gate.log_alpha._version
    read()
    gate.probability()
    gate.is_open()
    assert gate.log_alpha._version == version


def test_a_compiled_gate_reads_the_clamped_value_and_passes_the_gradient_at_the_bound():
    start = torch.tensor([-9.0, -4.6, 0.5, 9.0])
    found = []
    for compiled in (False, True):
        gate = gates.HardConcrete(4, clamp=4.6)
        gate.log_alpha.data.copy_(start)
        probability = torch.compile(gate.probability, backend="aot_eager") if compiled else gate.probability
        value = probability()
        value.sum().backward()
        found.append((value.detach(), gate.log_alpha.grad.clone()))
        gate.probability()  # in eager mode: the parameter itself is brought back
        assert gate.log_alpha.detach().tolist() == pytest.approx([-4.6, -4.6, 0.5, 4.6])
    torch.testing.assert_close(*found)
    assert (found[0][1] > 0).all()


@pytest.mark.parametrize(
    ("build", "backend"),
    [
        ("chain", "aot_eager"),
        pytest.param("chain", "inductor", marks=pytest.mark.nightly),
        pytest.param("gpt2", "inductor", marks=pytest.mark.nightly),
    ],
)
def test_a_compiled_model_gives_the_same_outputs_in_evaluation_mode(build, backend):
    if build == "chain":
        model, example = gated(chain).eval(), IMAGES
    else:
        model, example = gpt2()
        gates.attach_transformer(model.eval())
    compiled = torch.compile(model, backend=backend)
    outputs = [net(example) for net in (model, compiled)]
    torch.testing.assert_close(*[each if build == "chain" else each.logits for each in outputs])
    with pytest.raises(gates.HarvestError, match=r"pass model\._orig_mod"):
        gates.harvest(compiled, example)
    with pytest.raises(gates.HarvestError, match=r"pass model\._orig_mod"):
        gates.budget(compiled, example, flops=0.5)
