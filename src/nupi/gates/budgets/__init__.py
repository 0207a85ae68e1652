"""Budgets: how large the harvested network may be, in parameters, FLOPs or time.

budget = nupi.gates.budget(model, example, flops=0.5)      # half the FLOPs, of the network that is harvested
...
violations = {"flops": budget()}
lagrangian.ascend(dual, violations)                         # the multiplier sees the size at test time
lagrangian(loss, violations).backward()                     # the model gets the gradient of the expected size
...
budget.fit()                                                # from near the budget to on it, before the harvest
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

from nupi.gates.budgets.blocks import block_network
from nupi.gates.budgets.counting import Count
from nupi.gates.budgets.fitting import filled, strongest
from nupi.gates.budgets.latency import timed
from nupi.gates.budgets.parts import network
from nupi.gates.call import Call
from nupi.gates.densities import gated_layers
from nupi.gates.graph import UntraceableError
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.checks import check_model, copied, outputs
from nupi.gates.harvesting.footprint import flops_of
from nupi.gates.harvesting.stuck import stuck_for_good
from nupi.gates.transformer.layers import GatedInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.gates.call import Example
    from nupi.gates.hard_concrete import HardConcrete


class Budget:
    """A limit on the size of the harvested network; call it for the violation. Made by `budget`.

    Attributes:
        unit: "parameters", "flops" or "latency".
        limit: the share of the whole network that may be left.
        smallest: the share that is left if all gates close.

    With z the gates and share(p) the size of the network if the gates are open with probabilities p, as a share of
    the whole network, the violation and its gradient are

        value      share([median of z > 0]) - limit
        gradient   that of share(P(z > 0))

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> limit = nupi.gates.budget(model, torch.randn(16, 8), parameters=0.8)
        >>> limit().item()  # all gates are open: the whole network is 0.2 too large
        0.2
        >>> limit.fit()  # how many gates it closes
        1
        >>> limit.realised().item()  # 3 (8 + 1) and 3 * 2 + 2 of 46 parameters
        0.7609
    """

    def __init__(
        self,
        gates: list[HardConcrete],
        share: Callable[[torch.Tensor], torch.Tensor],
        *,
        unit: str,
        limit: float,
        model: nn.Module | None = None,
    ) -> None:
        self._gates = gates
        self._share = share
        self._unchecked = model
        self.unit, self.limit = unit, limit
        with torch.no_grad():
            everything = torch.cat([gate.is_open() for gate in gates])
            self.smallest = float(share(torch.zeros_like(everything, dtype=torch.float64)))

    def __call__(self) -> torch.Tensor:
        """The violation: the share at test time minus the limit, with the gradient of the expected share."""
        if self._unchecked is not None:  # once, as training starts: is the model still one that uses its gates?
            gated_layers(self._unchecked)
            self._unchecked = None
        expected = self.expected()
        return self.realised() - self.limit + (expected - expected.detach())

    def expected(self) -> torch.Tensor:
        """The expected share of the network that is left; differentiable in the gates."""
        return self._share(torch.cat([gate.probability() for gate in self._gates]))

    def realised(self) -> torch.Tensor:
        """The share of the network that a harvest would leave now: that of the gates open at test time."""
        return self._share(torch.cat([gate.is_open() for gate in self._gates]).to(torch.get_default_dtype()))

    def fit(self) -> int:
        """Open and close gates until the budget is kept and used up at test time, and say how many changed.

        Training ends near the budget, not on it. Call this before the harvest: the gates nearest to the point where
        they close make up the difference. What is left ends within 0.1 points below the limit, or within the size of
        the smallest gate if that is more. A gate that is opened is just open, so the outputs hardly change; it is worth
        something once the harvested network is trained on.
        """
        return self._leave(filled, opening=True)

    def trim(self) -> int:
        """Close the weakest open gates until the budget is kept at test time, and say how many they were.

        As `fit`, but nothing is opened: for a network that may end below its budget (`Inequality`).
        """
        return self._leave(strongest, opening=False)

    @torch.no_grad()
    def _leave(self, choose: Callable[..., torch.Tensor], *, opening: bool) -> int:
        """Leave the gates open that are chosen, from the strongest on, among all or among those that are open."""
        margins = torch.cat([gate.margin() for gate in self._gates])
        order = margins.argsort(descending=True, stable=True)
        if not opening:
            order = order[margins[order] > 0]
        stays = self._mask(choose(order, lambda chosen: self._share(self._mask(chosen).double()), self.limit))
        for gate, part in zip(
            self._gates, stays.split([len(gate.log_alpha) for gate in self._gates]), strict=True
        ):
            gate.close_(~part)
            gate.open_(part)
        return int((stays != (margins > 0)).sum())

    def _mask(self, chosen: torch.Tensor) -> torch.Tensor:
        count = sum(len(gate.log_alpha) for gate in self._gates)
        mask = torch.zeros(count, dtype=torch.bool, device=chosen.device)
        mask[chosen] = True
        return mask

    def __repr__(self) -> str:
        return (
            f"Budget({self.unit}={self.limit:g}: {self.realised().item():.3f} at test time, "
            f"{self.expected().item():.3f} expected, at least {self.smallest:.3f})"
        )


def budget(
    model: nn.Module,
    example: Example,
    *,
    parameters: float | None = None,
    flops: float | None = None,
    latency: float | None = None,
) -> Budget:
    """A limit on the size of what `harvest` will make of `model`, as a violation.

    A channel that goes takes its weights out of the layer that makes it and of the layers that use it, so the size is
    a product of the widths of neighbouring layers. Sizes are shares of the whole network, gated or not. Give one of:

    Args:
        model: a model with gates on channels.
        example: an input, a tuple of all arguments, or a dict of them by name: FLOPs and times are those of this call.
        parameters: the share of the parameters that may be left.
        flops: the share of the FLOPs of convolutions and matrix products.
        latency: the share of the time. Every form of layer is measured at several widths, which takes about a second
            each; times in between are interpolated. In a run of many processes all ranks must call this, and the
            times are those of rank 0.

    Returns:
        A callable: `budget()` is the violation to give to a Lagrangian, `budget.realised()` and `budget.expected()` are
        shares. It belongs to this model: a copy of the model needs its own.

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> half = budget(model, torch.randn(16, 8), parameters=0.5)
        >>> with torch.no_grad():
        ...     _ = model[0].gate.log_alpha[1:].fill_(-5.0)  # leaves 8 + 1 and 2 + 2 of 46 parameters
        >>> half.realised().item(), half().item()
        (0.2826, -0.2174)
    """
    asked = {"parameters": parameters, "flops": flops, "latency": latency}
    given = {unit: limit for unit, limit in asked.items() if limit is not None}
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise ValueError(f"budget takes one of parameters=, flops= and latency=, and {what} came")
    ((unit, limit),) = given.items()
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 1:
        raise ValueError(
            f"{unit}={limit!r} must be a share of the whole network, above 0 and at most 1, such as 0.5"
        )
    check_model(model)
    layers = gated_layers(model)
    if on_weights := [name for name, layer in layers.items() if layer.gate.log_alpha.dim() != 1]:
        raise ValueError(
            f"model has gates on the single weights of {on_weights[0]!r}: these become zeros, which a harvest does not "
            "take out; gate channels, or constrain nupi.gates.density"
        )
    call = Call.of(example)
    share, stuck = _share(model, call, unit), stuck_for_good(model, call)
    made = Budget([layer.gate for layer in layers.values()], share, unit=unit, limit=float(limit), model=model)
    why = "".join(f"; channels of {layer!r} cannot go: {reason}" for layer, reason in list(stuck.items())[:3])
    why += f"; and those of {len(stuck) - 3} more layers" if len(stuck) > 3 else ""
    if made.smallest > limit:
        raise ValueError(
            f"{unit}={limit!r} cannot be reached: with all gates closed {made.smallest:.3f} of the network is left"
            f"{why}; gate {'other' if stuck else 'more'} layers, or ask for more"
        )
    if stuck:
        warnings.warn(
            f"some gates take nothing out of the network{why}. Gate other layers, or pass partial=True to harvest, "
            "which otherwise refuses",
            stacklevel=2,
        )
    return made


def _share(model: nn.Module, call: Call, unit: str) -> Callable[[torch.Tensor], torch.Tensor]:
    plain = copied(model)
    gates = sum(layer.gate.log_alpha.numel() for layer in gated_layers(model).values())
    bake(plain)
    outputs(plain, call)  # for an error in words, if the model cannot be called so
    by_structure = [isinstance(layer, GatedInput) for layer in gated_layers(model).values()]
    if any(by_structure) and not all(by_structure):
        raise ValueError(
            "model has gates of attach_transformer and of attach: the size of both together cannot be computed; gate "
            "it with one of the two"
        )
    try:
        parts = (block_network if any(by_structure) else network)(model, plain, call)
    except UntraceableError as error:
        raise ValueError(f"{error}. So the size of the harvested network cannot be computed") from error
    if unit == "latency":
        return timed(parts, plain, call, gates)
    if unit == "parameters":
        total = sum(each.numel() for each in plain.parameters())
        return Count(parts, [each.parameters for each in parts.parts], total, gates)
    return Count(parts, [each.flops for each in parts.parts], flops_of(plain, call)["Global"], gates)
