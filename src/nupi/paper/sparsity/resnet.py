"""The ResNet-18 for CIFAR images of the paper's sparsity experiment, plain and gated.

A 3x3 stem, four stages of two residual blocks, an average over space and a linear head. At width 64 it has 11,173,962
parameters. Gates sit on the output channels of the first convolution of each of the 8 blocks,
4,718,592 parameters; all else is dense, and every weight is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from nupi import gates

if TYPE_CHECKING:
    from nupi.gates.layers import Place

GATED = "stage*.conv1"
"""The names of the gated convolutions, as `nupi.gates.attach` takes them."""


class Block(nn.Module):
    """y = relu(x' + norm(conv(relu(norm(conv(x)))))), where x' is x, or x through a 1x1 convolution."""

    def __init__(self, incoming: int, outgoing: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(incoming, outgoing, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outgoing)
        self.conv2 = nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outgoing)
        self.shortcut = nn.Sequential()
        if stride > 1 or incoming != outgoing:
            self.shortcut.append(nn.Conv2d(incoming, outgoing, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outgoing))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One residual step."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The network, for images of any size.

    Args:
        width: the channels of the first stage; each later one has twice as many. The paper's is 64.
        classes: how many there are.
        max_pool: halve the images behind the stem, as the authors' network does; images of 16 x 16 are too small.

    Example:
        >>> sum(parameter.numel() for parameter in ResNet18().parameters())
        11173962
    """

    def __init__(self, width: int = 64, classes: int = 10, *, max_pool: bool = False) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width!r} must be at least 1 channel; the paper's is 64")
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        if max_pool:
            self.stem.append(nn.MaxPool2d(3, 2, padding=1))
        self.stage1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.stage2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.stage3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.stage4 = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits of a batch of images (n, 3, height, width)."""
        features = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(images)))))
        logits: torch.Tensor = self.head(features.mean((2, 3)))
        return logits


def sparse_resnet18(
    width: int = 64,
    classes: int = 10,
    *,
    max_pool: bool = False,
    place: Place = "after",
    droprate_init: float = 0.01,
    clamp: float | None = None,
) -> ResNet18:
    """The network with the paper's gates; arguments as for `ResNet18` and `nupi.gates.attach`.

    Example:
        >>> sum(layer.gated_parameters() for layer in gates.gated_layers(sparse_resnet18()).values())
        4718592
    """
    model = ResNet18(width, classes, max_pool=max_pool)
    gates.attach(model, GATED, place=place, droprate_init=droprate_init, clamp=clamp)
    return model
