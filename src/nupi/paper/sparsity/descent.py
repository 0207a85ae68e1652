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

if TYPE_CHECKING:
    from torch import nn

    from nupi.paper.sparsity.methods import Dual
    from nupi.paper.sparsity.setting import Setting

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
        self, model: nn.Module, size: Setting, player: Dual, epsilon: float, *, layerwise: bool
    ) -> None:
        self.model, self.epsilon, self.layerwise = model.train(), epsilon, layerwise
        self.device = next(model.parameters()).device
        count = len(gates.gated_layers(model)) if layerwise else 1
        constraint = nupi.Inequality(count, init=player.multiplier, restart=player.restart)
        self.lagrangian = nupi.Lagrangian({"density": constraint}).to(self.device)
        self.dual = player.optimizer(self.lagrangian, size)
        self.weights = weight_optimizer(list(gates.weight_parameters(model)), size)
        self.phi = torch.optim.Adam(
            gates.gate_parameters(model), lr=size.gate_rate, betas=(0.9, size.beta2), fused=True
        )
        self.schedules: list[lr_scheduler.LRScheduler] = [
            lr_scheduler.CosineAnnealingLR(self.weights, size.steps)
        ]
        if player.ramp and self.dual is not None:
            self.schedules.append(lr_scheduler.LambdaLR(self.dual, player.gain(size.steps)))
        self.step = 0
        self._stride = -(-size.steps // KEPT_POINTS)
        self._curves: dict[str, list[torch.Tensor]] = {"step": [], "violations": [], "multipliers": []}

    def take(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step of all players on a batch."""
        loss = cross_entropy(self.model(images), labels)
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
        for optimizer in (self.weights, self.phi):
            optimizer.step()
            optimizer.zero_grad()
        for schedule in self.schedules:
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
            "curves": {name: list(values) for name, values in self._curves.items()},
            "parts": [part.state_dict() for part in self._parts()],
            "random": [generator.get_rng_state() for generator in self._generators()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another `Descent` with the same arguments was saved."""
        self.step = state["step"]
        self._curves = {name: list(values) for name, values in state["curves"].items()}
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        for generator, saved in zip(self._generators(), state["random"], strict=True):
            generator.set_rng_state(saved.cpu())

    def _parts(self) -> list[Any]:
        dual = [] if self.dual is None else [self.dual]
        return [self.model, self.lagrangian, self.weights, self.phi, *dual, *self.schedules]

    def _generators(self) -> list[Any]:
        """Batches are shuffled on the host; gates are sampled on the model's device."""
        elsewhere = [] if self.device.type == "cpu" else [torch.get_device_module(self.device)]
        return [torch.random, *elsewhere]


def weight_optimizer(weights: list[nn.Parameter], size: Setting) -> torch.optim.SGD:
    """The weights' optimizer; what it decays has no part in the gates."""
    return torch.optim.SGD(
        weights, lr=size.rate, momentum=MOMENTUM, weight_decay=size.weight_decay, fused=True
    )
