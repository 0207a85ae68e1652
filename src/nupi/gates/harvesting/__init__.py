"""Harvest: turn a trained gated model into a smaller plain one that computes the same.

1. The median gates become part of the weights.
2. The graph of the model (`torch.fx`) says which channels are then zero wherever they are used. For heads and MLP
   units of transformers, the structure of their blocks says it instead.
3. These channels are removed from the layer that makes them, from its norm, and from the layers that use them.

The result is a model of the same class with narrower layers. It trains, saves and exports like any other.

A harvest supports convolutions, linear layers, norms, activations, pooling, flattening, reductions over space, and
sums, products and concatenations of layers' outputs, in any arrangement. A closed channel that reaches anything else
stays. By default that is an error, which names the operation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # noqa: F401 - the examples below use it
from torch import nn  # noqa: TC002 - the example below uses it

from nupi.gates.call import Call
from nupi.gates.graph import UntraceableError, trace, unchanged
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.checks import HarvestError, check_model, copied, difference, outputs, rounding
from nupi.gates.harvesting.flow import Walk
from nupi.gates.harvesting.footprint import Footprint, measure
from nupi.gates.harvesting.narrow import narrow
from nupi.gates.harvesting.stuck import closed_channels, stuck_channels
from nupi.gates.transformer.blocks import blocks
from nupi.gates.transformer.noting import note_in_config, noted
from nupi.gates.transformer.shipping import save_with_code
from nupi.gates.transformer.surgery import narrow_blocks, open_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.gates.call import Example

__all__ = ["Footprint", "Harvest", "HarvestError", "harvest"]


@dataclass(frozen=True)
class Harvest:
    """A smaller model, and its cost before and after. `print` it for a table.

    Args:
        model: plain, in evaluation mode, without gates.
        before: the cost of the full model: gates made part of the weights, no channel removed.
        after: the cost of `model`.
        channels: by layer, the number of output channels left and the number before.
        stuck: by gated layer, why some of its closed channels had to stay; empty unless `partial`.
        difference: the largest difference of an output on the example, divided by the largest output or by 1,
            whichever is larger.

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> with torch.no_grad():
        ...     _ = model[0].gate.log_alpha[1:].fill_(-5.0)  # close three of four gates
        >>> made = nupi.gates.harvest(model, torch.randn(16, 8))
        >>> made.channels
        {'0': (1, 4), '2': (2, 2)}
        >>> made.before.parameters, made.after.parameters
        (46, 13)
        >>> made.difference < 1e-5
        True
    """

    model: nn.Module
    before: Footprint
    after: Footprint
    channels: Mapping[str, tuple[int, int]]
    stuck: Mapping[str, str]
    difference: float

    def __str__(self) -> str:
        rows = [f"{'':18}{'before':>16}{'after':>16}{'ratio':>8}"]
        for name, title in (
            ("parameters", "parameters"),
            ("nonzero", "not zero"),
            ("flops", "FLOPs"),
            ("milliseconds", "CPU milliseconds"),
        ):
            old, new = getattr(self.before, name), getattr(self.after, name)
            style = ",.2f" if name == "milliseconds" else ",d"
            rows.append(f"{title:18}{old:>16{style}}{new:>16{style}}{new / max(old, 1e-12):>8.3f}")
        rows.append(f"largest difference of an output: {self.difference:.1e}")
        rows.extend(f"{layer}: closed channels stay, {why}" for layer, why in self.stuck.items())
        if noted(self.model):
            rows.append(
                "its config has no fields for these widths: once saved, load it with an auto class and "
                "trust_remote_code=True, or with nupi.gates.from_pretrained"
            )
        return "\n".join(rows)


def harvest(
    model: nn.Module,
    example: Example,
    *,
    partial: bool = False,
    tolerance: float | None = None,
    repeats: int = 20,
) -> Harvest:
    """Return a smaller plain model with the same outputs as the gated `model` in evaluation mode.

    `model` is not changed. At least one channel of every layer stays.

    Args:
        model: a model with gated layers, which `torch.fx` can trace.
        example: an input, a tuple of all arguments, or a dict of them by name. Both models are run, compared and
            timed on it.
        partial: leave closed channels that cannot be removed, and say why in `stuck`, instead of raising.
        tolerance: the largest `difference` allowed between the outputs. Unless given, 1e-5, or four times the
            rounding of the model's parameters if that is more: 0.03 in bfloat16.
        repeats: how often each model is timed.

    Raises:
        HarvestError: the model cannot be copied, called on the example or traced, a closed channel cannot be
            removed (unless `partial`), or the outputs differ.

    Example:
        >>> import nupi
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> with torch.no_grad():
        ...     _ = model[0].gate.log_alpha[1:].fill_(-5.0)  # close three of four gates
        >>> harvest(model, torch.randn(16, 8)).model
        Sequential(
          (0): Linear(in_features=8, out_features=1, bias=True)
          (1): ReLU()
          (2): Linear(in_features=1, out_features=2, bias=True)
        )
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats={repeats!r} must be a whole number, at least 1")
    check_model(model)
    call = Call.of(example)
    whole = copied(model)
    closed, stays = closed_channels(whole), open_inputs(whole)
    expected = outputs(whole, call)
    bake(whole)
    small = copy.deepcopy(whole)
    channels = narrow_blocks(small, list(blocks(small)), stays) if stays else {}
    stuck: dict[str, str] = {}
    if closed is not None:
        try:
            walk = Walk(small, trace(small, call))
        except UntraceableError as error:
            raise HarvestError(str(error)) from error
        stuck = stuck_channels(walk, closed)
        _refuse(stuck, partial=partial)
        channels |= narrow(walk)
    note_in_config(small, stays)
    save_with_code(small)
    gap = difference(expected, outputs(small, call, "the smaller model"))
    allowed = rounding(small) if tolerance is None else tolerance
    if not gap <= allowed:
        raise HarvestError(
            f"the outputs of the smaller model differ by {gap:.1e}, which is more than tolerance={allowed:g}. "
            "Causes: the forward pass is random, gives nan, computes in lower precision than its parameters have, or "
            "reads the weights of a gated layer itself (tied weights). If the only cause is precision, pass a larger "
            "tolerance"
        )
    with unchanged(small):
        before, after = measure([whole, small], call, repeats)
    return Harvest(small, before, after, channels, stuck, gap)


def _refuse(stuck: Mapping[str, str], *, partial: bool) -> None:
    if stuck and not partial:
        layer, why = next(iter(stuck.items()))
        raise HarvestError(
            f"closed channels of {layer!r} cannot be taken out: {why}. Gate another layer, change the model, or "
            "pass partial=True to leave these channels in"
        )
