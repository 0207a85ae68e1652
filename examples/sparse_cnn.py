"""Train a small digit classifier down to 30% of its parameters, remove the closed channels, and export it.

The steps: gates on the channels of a plain CNN, by name; a budget on the parameters that are left, with the four lines
of nupi; a harvest, which removes the closed channels; and a count of parameters and FLOPs of the exported program.

    python examples/sparse_cnn.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import nupi
from nupi import gates

LIMIT = 0.3


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,797 handwritten digits of 8 x 8 pixels; the last 400 are the test set."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(data.target)
    return images[:-400], labels[:-400], images[-400:], labels[-400:]


def network() -> nn.Sequential:
    """An ordinary CNN, without anything for gates."""

    def block(incoming: int, outgoing: int) -> nn.Sequential:
        convolution = nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outgoing), nn.ReLU())

    features = [block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 128), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 10))


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy in percent."""
    with torch.no_grad():
        right: torch.Tensor = model.eval()(images).argmax(1) == labels
    return 100 * right.float().mean().item()


def batches(images: torch.Tensor) -> torch.Tensor:
    """The rows of the batches of one epoch, in a new order."""
    count = len(images) // 64
    return torch.randperm(len(images))[: count * 64].view(count, 64)


def train(
    model: nn.Module, budget: gates.Budget, images: torch.Tensor, labels: torch.Tensor, epochs: int
) -> None:
    """An ordinary training loop with the four lines of nupi."""
    weights = torch.optim.SGD(gates.weight_parameters(model), lr=0.05, momentum=0.9, weight_decay=5e-4)
    gates_optimizer = torch.optim.Adam(gates.gate_parameters(model), lr=0.05, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(weights, epochs)

    lagrangian = nupi.Lagrangian({"parameters": nupi.Equality()})  # an equality uses the whole budget
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.03, kp=3.0)
    model.train()
    for epoch in range(epochs):
        for rows in batches(images):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            violations = {"parameters": budget()}
            lagrangian.ascend(dual, violations)
            lagrangian(loss, violations).backward()
            for optimizer in (weights, gates_optimizer):
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
        if epoch % 5 == 4:
            multiplier = lagrangian.multipliers["parameters"].item()
            print(
                f"epoch {epoch + 1:3d}   loss {loss.item():6.3f}   parameters {budget.realised().item():.3f}   "
                f"multiplier {multiplier:.3f}"
            )


def train_on(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """An ordinary training loop, because the harvested network is an ordinary one."""
    weights = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    model.train()
    for _ in range(epochs):
        for rows in batches(images):
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            weights.step()
            weights.zero_grad()


def counted(model: nn.Module, images: torch.Tensor) -> tuple[int, int]:
    """Parameters, and the FLOPs of one pass, counted on the model itself."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    return sum(each.numel() for each in model.parameters()), int(counter.get_total_flops())


def main() -> None:
    """Train, fit, harvest, train further, export, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits()
    example = test_images[:64]

    model = network().eval()
    before = counted(model, example)
    gated = gates.attach(model, ["0.0", "1.0", "3.0"], droprate_init=0.05, clamp=4.6)
    budget = gates.budget(model, example, parameters=LIMIT)
    print(f"gates on the channels of {', '.join(gated)}; {LIMIT:.0%} of all parameters may be left\n")
    train(model, budget, images, labels, epochs)
    print(
        f"\ntraining ended at {budget.realised().item():.1%} of the parameters; {budget.fit()} gates were moved to fit"
    )

    small = gates.harvest(model, example)
    print(f"test accuracy {accuracy(model, test_images, test_labels):.1f}% with gates, ", end="")
    print(f"{accuracy(small.model, test_images, test_labels):.1f}% harvested\n")
    print(small)
    print(
        "\nchannels left: "
        + ", ".join(f"{name} {left}/{all_}" for name, (left, all_) in small.channels.items())
    )

    train_on(small.model, images, labels, max(1, epochs // 5))
    print(f"test accuracy {accuracy(small.model, test_images, test_labels):.1f}% when trained on a little")
    program = torch.export.export(small.model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    after = counted(program.module(), example)
    shares = [
        f"{new / old:.1%} of the {name}"
        for name, new, old in zip(("parameters", "FLOPs"), after, before, strict=True)
    ]
    print(f"the exported program has {' and '.join(shares)}")


if __name__ == "__main__":
    main()
