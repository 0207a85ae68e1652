"""The tasks of `gates_pruning`: a small ResNet-18 on CIFAR-10, and a small GPT-2 on synthetic text."""

# ruff: noqa: D102 - the protocol says what each method is for

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from nupi import gates
from nupi.paper.data import cifar10
from nupi.paper.sparsity.resnet import GATED, ResNet18

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Task(Protocol):
    """A model, its data, and the channels that may be removed.

    `l1` returns the penalty for the loss. `prune` removes channels by "magnitude" or by "l1" until a number of FLOPs is
    left. The names of the other methods describe them.
    """

    name: str
    title: str
    steps: int
    ki: float
    kp: float
    gate_rate: float
    example: torch.Tensor

    def build(self) -> nn.Module: ...
    def attach(self, model: nn.Module) -> None: ...
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...
    def batch(self, generator: torch.Generator) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor: ...
    def accuracy(self, model: nn.Module) -> float: ...
    def l1(self, model: nn.Module) -> Callable[[], torch.Tensor]: ...
    def prune(self, model: nn.Module, method: str, flops: float) -> nn.Module: ...


class Cifar:
    """CIFAR-10 averaged down to 16 x 16, and a ResNet-18 of an eighth of the usual width."""

    name, title = "cifar", "CIFAR-10, ResNet-18"
    width, side, size, steps = 8, 16, 64, 1_000
    ki, kp, gate_rate = 0.05, 10.0, 0.05
    l1_rate = 1e-3

    def __init__(self) -> None:
        data = cifar10.load()

        def smaller(split: cifar10.Split) -> torch.Tensor:
            mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (cifar10.MEAN, cifar10.DEVIATION))
            return torch.cat(
                [
                    avg_pool2d((part / 255 - mean) / deviation, cifar10.SIDE // self.side)
                    for part in split.images.split(5_000)
                ]
            )

        self.images, self.labels = smaller(data.train), data.train.labels.long()
        self.test_images, self.test_labels = smaller(data.test)[:5_000], data.test.labels[:5_000].long()
        self.example = self.test_images[:64]

    def build(self) -> nn.Module:
        return ResNet18(self.width)

    def attach(self, model: nn.Module) -> None:
        gates.attach(model, GATED, droprate_init=0.05, clamp=4.6)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)

    def batch(self, generator: torch.Generator) -> Any:
        rows = torch.randint(len(self.images), (self.size,), generator=generator)
        images = self.images[rows]
        mirrored = torch.rand(self.size, generator=generator) < 0.5
        return torch.where(mirrored[:, None, None, None], images.flip(3), images), self.labels[rows]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        right = [
            (model(images).argmax(1) == labels).float()
            for images, labels in zip(self.test_images.split(500), self.test_labels.split(500), strict=True)
        ]
        return 100 * torch.cat(right).mean().item()

    def l1(self, model: nn.Module) -> Callable[[], torch.Tensor]:
        scales = [each for name, each in model.named_parameters() if name.endswith("norm1.weight")]
        return lambda: self.l1_rate * torch.cat([scale.abs().flatten() for scale in scales]).sum()

    def prune(self, model: nn.Module, method: str, flops: float) -> nn.Module:
        """Remove channels of the first convolution of every block with torch-pruning, until the FLOPs fit."""
        import torch_pruning  # in the extra `bench`

        free = {module for name, module in model.named_modules() if name.endswith(".conv1")}
        ignored = [
            module
            for module in model.modules()
            if isinstance(module, nn.Conv2d | nn.Linear) and module not in free
        ]
        importance = {
            "magnitude": torch_pruning.importance.GroupMagnitudeImportance,
            "l1": torch_pruning.importance.BNScaleImportance,
        }[method]
        steps = 200
        pruner = torch_pruning.pruner.BasePruner(
            model,
            self.example,
            importance=importance(),
            global_pruning=True,
            pruning_ratio=1.0,
            max_pruning_ratio=0.95,
            iterative_steps=steps,
            ignored_layers=ignored,
        )
        for _ in range(steps):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                model(self.example)
            if counter.get_total_flops() <= flops:
                break
            pruner.step()
        return model


class Text:
    """Sentences of a small grammar with agreement and sums, letter by letter, and a GPT-2 of two layers.

    Torch-pruning cannot prune a GPT-2 (its graph has no Conv1D), so magnitude and L1 use the surgery of `nupi.gates`.
    They remove the heads and units with the smallest weights first, relative to the others of their block.
    """

    name, title = "text", "made-up text, GPT-2"
    letters = " .+=0123456789abcdefghijklmnopqrstuvwxyz"
    length, size, steps = 32, 16, 1_000
    ki, kp, gate_rate = 0.067, 7.0, 0.067
    l1_rate = 3e-4

    def __init__(self) -> None:
        self.train_text = self._text(6_000, seed=1)
        test = self._text(1_500, seed=2)
        count = len(test) // self.length
        self.test = test[: count * self.length].view(count, self.length)[:500]
        self.example = self.test[:16]

    def _text(self, sentences: int, seed: int) -> torch.Tensor:
        import random

        draw = random.Random(seed)
        names, things = ("ann", "ben", "cleo", "dan", "eve"), ("apple", "book", "coin", "drum", "egg", "fish")
        verbs = {"find": "finds", "keep": "keeps", "sell": "sells", "want": "wants"}
        said = []
        for _ in range(sentences):
            a, b = draw.randint(1, 9), draw.randint(1, 9)
            who, other = draw.sample(names, 2)
            many = draw.random() < 0.5
            verb = draw.choice(list(verbs))
            thing = draw.choice(things) + ("s" if a > 1 else "")
            subject = f"{who} and {other} {verb}" if many else f"{who} {verbs[verb]}"
            said.append(f"{subject} {a} {thing}. {a}+{b}={a + b}. ")
        return torch.tensor([self.letters.index(letter) for letter in "".join(said)])

    def build(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        ends = {"bos_token_id": 0, "eos_token_id": 0}
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_inner": 256, "n_positions": self.length}
        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=len(self.letters), **sizes, **ends, **quiet))
        return model

    def attach(self, model: nn.Module) -> None:
        gates.attach_transformer(model, droprate_init=0.05, clamp=4.6)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)

    def batch(self, generator: torch.Generator) -> Any:
        starts = torch.randint(len(self.train_text) - self.length, (self.size, 1), generator=generator)
        return self.train_text[starts + torch.arange(self.length)]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        logits = model(batch).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        found = model.eval()(self.test).logits[:, :-1].argmax(2)
        return float(100 * (found == self.test[:, 1:]).float().mean())

    def l1(self, model: nn.Module) -> Callable[[], torch.Tensor]:
        used = [each for name, each in model.named_parameters() if name.endswith("c_proj.weight")]
        return lambda: self.l1_rate * torch.cat([weight.abs().flatten() for weight in used]).sum()

    def prune(self, model: nn.Module, method: str, flops: float) -> nn.Module:
        """Close the heads and units with the smallest weights until the FLOPs fit, and harvest."""
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(self.example)
        self.attach(model)
        budget = gates.budget(model, self.example, flops=flops / counter.get_total_flops())
        for layer in gates.gated_layers(model).values():
            weight = layer.get_parameter("weight").detach()
            power = 1 if method == "l1" else 2
            score = weight.view(len(layer.gate.log_alpha), -1).norm(power, dim=1)
            layer.gate.log_alpha.data = score / score.mean()
        budget.fit()
        for layer in gates.gated_layers(model).values():
            layer.gate.log_alpha.data = torch.where(layer.gate.is_open(), 4.5, -4.5)
        return gates.harvest(model, self.example, repeats=1).model


TASKS: dict[str, type[Any]] = {"cifar": Cifar, "text": Text}
