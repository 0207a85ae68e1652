"""A run under way: the network, the players, and where they stand; it can be saved, and go on from there.

The problem: minimise the expected cross-entropy over the gates, so that the expected share of active gated
parameters is at most epsilon, in the whole network or in each of its 8 gated layers. The dual player moves first,
once a step, on the exact density.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import nupi
from nupi import gates
from nupi.paper.sparsity import authors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.scales import Experiment

KEPT_POINTS = 1_600  # of a run's curves, at most
MOMENTUM = 0.9


class Descent:
    """The training of a gated model, step by step.

    Args:
        model: with its gates.
        size: of the experiment: rates, and how many steps there will be.
        player: the dual player.
        epsilon: the largest density allowed.
        layerwise: whether each layer has a constraint of its own.
    """

    def __init__(
        self, model: nn.Module, size: Experiment, player: Dual, epsilon: float, *, layerwise: bool
    ) -> None:
        self.model, self.epsilon, self.layerwise = model.train(), epsilon, layerwise
        self.device = next(model.parameters()).device
        count = len(gates.gated_layers(model)) if layerwise else 1
        constraint = nupi.Inequality(count, init=player.multiplier, restart=player.restart)
        self.lagrangian = nupi.Lagrangian({"density": constraint}).to(self.device)
        self.size = size
        self.weights = weight_optimizer(_groups(model, size), size)
        self.phi = torch.optim.Adam(
            gates.gate_parameters(model), lr=size.gate_rate, betas=(size.beta1, size.beta2), fused=True
        )
        self.dual = player.optimizer(self.lagrangian, size, (self.weights, self.phi))
        turns = size.epochs if size.cosine == "epoch" else size.steps
        self.cosine = lr_scheduler.CosineAnnealingLR(self.weights, turns)
        self.ramps: list[lr_scheduler.LRScheduler] = []
        if player.ramp and self.dual is not None:
            self.ramps.append(lr_scheduler.LambdaLR(self.dual, player.gain(size.steps)))
        self.step = 0
        self._stride = -(-size.steps // KEPT_POINTS)
        self._curves: dict[str, list[torch.Tensor]] = {"step": [], "violations": [], "multipliers": []}
        self._right, self._seen = torch.zeros((), dtype=torch.long, device=self.device), 0

    def epoch(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take a step on every batch of an epoch, or of a part of one."""
        self._right, self._seen = torch.zeros_like(self._right), 0
        for images, labels in batches:
            self.take(images, labels)
        if self.size.cosine == "epoch":
            self.cosine.step()

    @property
    def average_accuracy(self) -> float:
        """The share of the last epoch's images that got their class in training mode, each when its turn came."""
        return self._right.item() / max(self._seen, 1)

    def take(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step of all players on a batch."""
        logits = self.model(images)
        loss = cross_entropy(logits, labels)
        if self.size.accuracy == "averaged":
            self._right += (logits.detach().argmax(1) == labels).sum()
            self._seen += len(labels)
        density = (
            gates.layer_densities(self.model) if self.layerwise else gates.density(self.model).unsqueeze(0)
        )
        violations = {"density": density - self.epsilon}
        if self.dual is not None:
            self.lagrangian.ascend(self.dual, violations)
        self.lagrangian(loss, violations).backward()
        if self.step % self._stride == 0:
            self._curves["step"].append(torch.tensor(self.step))
            self._curves["violations"].append(violations["density"].detach())
            self._curves["multipliers"].append(self.lagrangian.multipliers["density"].clone())
        if self.size.decay == "active":
            authors.add_active_decay(self.model, self.size.weight_decay)
        for optimizer in (self.weights, self.phi):
            optimizer.step()
            optimizer.zero_grad()
        for schedule in (*self.ramps, *[self.cosine] * (self.size.cosine == "step")):
            schedule.step()
        self.step += 1

    def curves(self) -> dict[str, torch.Tensor]:
        """The violations and the multipliers that each kept step was taken with, and the multipliers now."""
        stacked = {name: torch.stack(values).cpu() for name, values in self._curves.items()}
        return stacked | {"multiplier": self.lagrangian.multipliers["density"].cpu().clone()}

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, the generators of random numbers among it."""
        return {
            "step": self.step,
            "right": self._right,
            "seen": self._seen,
            "curves": {name: list(values) for name, values in self._curves.items()},
            "parts": [part.state_dict() for part in self._parts()],
            "random": [generator.get_rng_state() for generator in self._generators()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another `Descent` with the same arguments was saved."""
        self.step = state["step"]
        self._right, self._seen = state["right"].to(self.device), state["seen"]
        self._curves = {name: list(values) for name, values in state["curves"].items()}
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        for generator, saved in zip(self._generators(), state["random"], strict=True):
            generator.set_rng_state(saved.cpu())

    def _parts(self) -> list[Any]:
        dual = [] if self.dual is None else [self.dual]
        return [self.model, self.lagrangian, self.weights, self.phi, *dual, self.cosine, *self.ramps]

    def _generators(self) -> list[Any]:
        """Batches are shuffled on the host; gates are sampled on the model's device."""
        elsewhere = [] if self.device.type == "cpu" else [torch.get_device_module(self.device)]
        return [torch.random, *elsewhere]


def _groups(model: nn.Module, size: Experiment) -> list[dict[str, Any]]:
    """The weights that are trained; those whose decay depends on their gates apart, with none of their own."""
    weights = authors.trained_weights(model, size.trained)
    if size.decay == "plain":
        return [{"params": weights}]
    gated = [weight for weight, _ in authors.gated_weights(model)]
    apart = {id(weight) for weight in gated}
    dense = [weight for weight in weights if id(weight) not in apart]
    return [{"params": part} | more for part, more in ((dense, {}), (gated, {"weight_decay": 0.0})) if part]


def weight_optimizer(groups: list[dict[str, Any]], size: Experiment) -> torch.optim.SGD:
    """The weights' optimizer; what it decays has no part in the gates."""
    return torch.optim.SGD(
        groups, lr=size.rate, momentum=MOMENTUM, weight_decay=size.weight_decay, fused=True
    )
