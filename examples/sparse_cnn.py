"""A small network that reads digits, trained to use at most 30% of its channels' weights, then made that small.

Gates on the channels of a plain CNN, by name; a constraint on the density they leave, with the four lines of nupi; and
a harvest, which takes the closed channels out. Prints the accuracy, size and speed before and after.

    python examples/sparse_cnn.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import nupi
from nupi import gates

DENSITY = 0.3


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,797 handwritten digits of 8 x 8, of which the last 400 are kept for the test."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(data.target)
    return images[:-400], labels[:-400], images[-400:], labels[-400:]


def network() -> nn.Sequential:
    """An ordinary CNN: nothing in it knows of gates."""

    def block(incoming: int, outgoing: int) -> nn.Sequential:
        convolution = nn.Conv2d(incoming, outgoing, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outgoing), nn.ReLU())

    features = [block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 128), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 10))


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that get their label, in percent."""
    with torch.no_grad():
        right: torch.Tensor = model.eval()(images).argmax(1) == labels
    return 100 * right.float().mean().item()


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """An ordinary training loop with the four lines of nupi."""
    weights = torch.optim.SGD(gates.weight_parameters(model), lr=0.05, momentum=0.9, weight_decay=5e-4)
    gates_optimizer = torch.optim.Adam(gates.gate_parameters(model), lr=0.05, betas=(0.9, 0.95))
    batches = len(images) // 64
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(weights, epochs * batches)

    lagrangian = nupi.Lagrangian({"density": nupi.Inequality()})
    # The run is short: it begins with a push of kp times the violation.
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.01, kp=10.0, init="zero")
    model.train()
    for epoch in range(epochs):
        for rows in torch.randperm(len(images))[: batches * 64].view(-1, 64):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            violations = {"density": gates.density(model) - DENSITY}
            lagrangian.ascend(dual, violations)
            lagrangian(loss, violations).backward()
            for optimizer in (weights, gates_optimizer):
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        if epoch % 5 == 4:
            now = gates.density(model).item()
            multiplier = lagrangian.multipliers["density"].item()
            print(
                f"epoch {epoch + 1:3d}   loss {loss.item():6.3f}   density {now:.3f}   multiplier {multiplier:.3f}"
            )


def main() -> None:
    """Train, harvest, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits()

    model = network()
    gated = gates.attach(model, ["0.0", "1.0", "3.0"], droprate_init=0.05, clamp=4.6)
    print(f"gates on the channels of {', '.join(gated)}; at most {DENSITY:.0%} of their weights\n")
    train(model, images, labels, epochs)

    small = gates.harvest(model, test_images[:64])
    expected, realised = gates.density(model).item(), gates.density(model, kind="realised").item()
    print(f"\nexpected density {expected:.3f}, density at test time {realised:.3f}")
    print(f"test accuracy {accuracy(model, test_images, test_labels):.1f}% with gates, ", end="")
    print(f"{accuracy(small.model, test_images, test_labels):.1f}% harvested\n")
    print(small)
    print(
        "\nchannels left: "
        + ", ".join(f"{name} {left}/{all_}" for name, (left, all_) in small.channels.items())
    )


if __name__ == "__main__":
    main()
