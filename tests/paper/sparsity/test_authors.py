"""The authors' protocol, part by part against a few plain lines, and a whole run of it at smoke size."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from nupi import gates
from nupi.paper.command import app
from nupi.paper.jobs import running
from nupi.paper.sparsity import authors, training
from nupi.paper.sparsity.descent import Descent
from nupi.paper.sparsity.methods import GA, Dual
from nupi.paper.sparsity.resnet import ResNet18
from nupi.paper.sparsity.scales import EXPERIMENTS

SMALL = replace(
    EXPERIMENTS["paper"],
    images=20,
    side=8,
    width=2,
    batch=8,
    epochs=3,
    max_pool=False,
    augment=False,
    rate=0.05,
)


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 10
    monkeypatch.setattr(training, "data", lambda _: ((images, labels), (images[:10], labels[:10])))
    monkeypatch.setattr(running, "available_cores", lambda: 1)


def test_every_part_is_in_use_at_paper_scale():
    paper = EXPERIMENTS["paper"]
    parts = (paper.start, paper.divide, paper.decay, paper.cosine, paper.accuracy, paper.place, paper.clamp)
    assert parts == ("fan out", True, "active", "epoch", "averaged", "before", None)
    assert (paper.droprate_init, paper.rate, paper.weight_decay, paper.epochs) == (0.01, 0.1, 5e-4, 200)


def test_convolutions_start_with_the_variance_of_their_fan_out():
    torch.manual_seed(0)
    model = ResNet18(64)
    authors.start_by_fan_out(model)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 50_000:
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)


def test_gated_weights_alone_are_divided():
    torch.manual_seed(0)
    plain = ResNet18(2)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    after = training.gated(plain, SMALL).state_dict()
    for name, tensor in before.items():
        divided = tensor / 0.99 if name.endswith("conv1.weight") else tensor
        torch.testing.assert_close(after[name], divided)


def by_hand(model):
    """Plain torch: decay added to the gradients, the gated ones times the gates' probability; cosine by epoch."""
    gated = {id(weight): gate for weight, gate in authors.gated_weights(model)}
    weights = list(gates.weight_parameters(model))
    sgd = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    factor = 78_200 / 9
    phi = torch.optim.Adam(gates.gate_parameters(model), lr=1e-3 * factor, betas=(0.9, 0.999**factor))
    multiplier, right, seen, path = 0.0, 0, 0, []
    model.train()
    for epoch in range(3):
        right, seen = 0, 0
        for group in sgd.param_groups:
            group["lr"] = 0.05 * (1 + torch.tensor(torch.pi * epoch / 3).cos().item()) / 2
        for images, labels in training.batches(SMALL):
            logits = model(images)
            right, seen = right + (logits.argmax(1) == labels).sum().item(), seen + len(labels)
            violation = gates.density(model) - 0.5
            multiplier = max(0.0, multiplier + 8e-4 * factor * violation.item())
            (cross_entropy(logits, labels) + multiplier * violation).backward()
            for weight in weights:
                active = (
                    gated[id(weight)].probability().detach().view(-1, 1, 1, 1) if id(weight) in gated else 1.0
                )
                weight.grad += 5e-4 * active * weight.detach()
            path.append([violation.item(), multiplier])
            sgd.step(), phi.step()
            sgd.zero_grad(), phi.zero_grad()
    return torch.tensor(path), right / seen


def test_the_loop_is_the_one_written_by_hand():
    def model():
        torch.manual_seed(3)
        return training.gated(ResNet18(2), SMALL)

    expected, accuracy = by_hand(model())
    run = Descent(model(), SMALL, GA, 0.5, layerwise=False)
    training.descend(run, SMALL)
    curves = run.curves()
    found = torch.cat([curves["violations"], curves["multipliers"]], 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert run.average_accuracy == pytest.approx(accuracy)


def test_which_weights_are_trained_is_an_option():
    torch.manual_seed(0)
    model = training.gated(ResNet18(2), SMALL)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    run = Descent(model, replace(SMALL, trained="gated"), Dual(kp=1.0), 0.5, layerwise=False)
    training.descend(run, SMALL)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    norms = {name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    assert all(
        "log_alpha" in name or name.endswith("conv1.weight") or name.rpartition(".")[0] in norms
        for name in moved
    )
    assert any(name.rpartition(".")[0] in norms for name in moved)
    assert sum(name.endswith("conv1.weight") for name in moved) == 8


def test_the_paper_scale_from_end_to_end_with_jobs_elsewhere(tmp_path, monkeypatch):
    """At smoke size, as if an accelerator were there: warm-up, gates, training, tables and claims."""
    monkeypatch.setitem(EXPERIMENTS, "paper", SMALL)
    monkeypatch.setattr("nupi.paper.sparsity.dry_run.jobs.are_submitted", lambda: True)
    monkeypatch.setattr("nupi.paper.sparsity.dynamics.SEEDS", {"paper": 1})
    command = [
        "reproduce",
        "sparsity-dynamics",
        "--scale",
        "paper",
        "--out",
        str(tmp_path),
        "--set",
        "trained=gated",
    ]
    ran = CliRunner().invoke(app, command)
    assert "failed" not in ran.output, ran.output
    summary = json.loads((tmp_path / "sparsity-dynamics" / "summary.json").read_text())
    assert summary["options"] == {"trained": "gated"}
    assert "dry_run" not in summary
    assert len(summary["claims"]) == 5


def test_without_an_accelerator_the_paper_scale_is_a_dry_run(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "paper", SMALL)
    ran = CliRunner().invoke(
        app, ["reproduce", "sparsity-global", "--scale", "paper", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    summary = json.loads((tmp_path / "sparsity-global" / "summary.json").read_text())
    assert (summary["scale"], summary["dry_run"], summary["claims"]) == ("paper", True, [])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("trained=some", "trained='some': choose 'all' or 'gated'"),
        ("width=3", "has no option 'width'; it has trained"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(tmp_path, given, words):
    command = ["reproduce", "sparsity-global", "--scale", "smoke", "--out", str(tmp_path), "--set", given]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code != 0
    assert words in " ".join(ran.output.replace("\u2502", " ").split())


def test_momentum_is_rescaled_with_the_time_only_if_asked():
    laptop = EXPERIMENTS["laptop"]
    assert (laptop.beta1, laptop.remembered(-0.5)) == (0.9, -0.5)
    alike = replace(laptop, rescale="all")
    factor = 78_200 / 1_500
    assert alike.beta1 == pytest.approx(0.9**factor)
    assert alike.remembered(-0.5) == pytest.approx(-(0.5**factor))
    assert asdict(alike)["rescale"] == "all"
