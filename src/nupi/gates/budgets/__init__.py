"""Budgets: how large the harvested network may be, in parameters, FLOPs or time.

budget = nupi.gates.budget(model, example, flops=0.5)      # half the FLOPs, of the network that is harvested
...
violations = {"flops": budget()}
lagrangian.ascend(dual, violations)                         # the multiplier sees the size at test time
lagrangian(loss, violations).backward()                     # the model gets the gradient of the expected size
...
budget.fit()                                                # before the harvest: meet the budget exactly
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch  # noqa: TC002 - the example below uses it
from torch import nn  # noqa: TC002 - the example below uses it

from nupi.gates.budgets.blocks import block_network
from nupi.gates.budgets.counting import Count
from nupi.gates.budgets.equal_widths import EqualWidths
from nupi.gates.budgets.latency import timed
from nupi.gates.budgets.limit import Budget
from nupi.gates.budgets.parts import network
from nupi.gates.call import Call
from nupi.gates.densities import gated_layers
from nupi.gates.graph import UntraceableError
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.checks import check_model, copied, outputs
from nupi.gates.harvesting.footprint import flops_of
from nupi.gates.harvesting.stuck import stuck_for_good
from nupi.gates.transformer.blocks import blocks
from nupi.gates.transformer.layers import GatedInput
from nupi.gates.transformer.plain_config import sayable, says

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nupi.gates.call import Example
    from nupi.gates.layers import Gated


def budget(
    model: nn.Module,
    example: Example,
    *,
    parameters: float | None = None,
    flops: float | None = None,
    latency: float | None = None,
) -> Budget:
    """A limit on the size of the network that `harvest` will make of `model`, as a violation.

    A removed channel has weights in the layer that computes it and in the layers that use it, so sizes are products of
    the widths of neighbouring layers. A size is given as a share of the whole network, layers without gates included.
    The violation is

        (size after a harvest) / (size of the whole network) - limit

    Give one of `parameters`, `flops` and `latency`.

    Args:
        model: a model with gates on channels.
        example: an input, a tuple of all arguments, or a dict of them by name. FLOPs and times are measured on it.
        parameters: the share of the parameters that may be left.
        flops: the share of the FLOPs of convolutions and matrix products.
        latency: the share of the time. Every distinct layer is timed at several widths, which takes about a second
            per layer; times between these widths are interpolated. With several processes all ranks must call this
            function, and all use the times of rank 0.

    Returns:
        A callable. `budget()` is the violation for a Lagrangian; `budget.realised()` and `budget.expected()` are
        shares. A copy of the model needs a budget of its own.

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
        raise ValueError(f"budget takes one of parameters=, flops= and latency=, but {what} came")
    ((unit, limit),) = given.items()
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 1:
        raise ValueError(
            f"{unit}={limit!r} must be a share of the whole network, above 0 and at most 1, such as 0.5"
        )
    check_model(model)
    layers = gated_layers(model)
    if on_weights := [name for name, layer in layers.items() if layer.gate.log_alpha.dim() != 1]:
        raise ValueError(
            f"model has gates on the single weights of {on_weights[0]!r}: closed ones become zeros, which a harvest "
            "does not remove; gate channels, or constrain nupi.gates.density"
        )
    call = Call.of(example)
    share, stuck = _share(model, call, unit), stuck_for_good(model, call)
    made = Budget(
        [layer.gate for layer in layers.values()],
        share,
        unit=unit,
        limit=float(limit),
        **_structure(model, layers),
    )
    why = "".join(
        f"; channels of {layer!r} cannot be removed: {reason}" for layer, reason in list(stuck.items())[:3]
    )
    why += f"; and those of {len(stuck) - 3} more layers" if len(stuck) > 3 else ""
    if made.smallest > limit:
        raise ValueError(
            f"{unit}={limit!r} cannot be reached: with all gates closed {made.smallest:.3f} of the network is left"
            f"{why}; gate {'other' if stuck else 'more'} layers, or raise the limit"
        )
    if stuck:
        warnings.warn(
            f"some gates remove nothing from the network{why}. Gate other layers, or pass partial=True to harvest, "
            "which raises an error otherwise",
            stacklevel=2,
        )
    return made


def _structure(model: nn.Module, layers: Mapping[str, Gated]) -> dict[str, Any]:
    """The model, and the sizes of its blocks that `fit(uniform=True)` needs."""
    if not all(isinstance(layer, GatedInput) for layer in layers.values()):
        return {"model": model}
    kinds = {block.user: block.kind for block in blocks(model)}
    gated = {kinds[name] for name in layers}
    if any(kind in gated and name not in layers for name, kind in kinds.items()):
        return {"model": model}  # blocks without gates keep their widths
    return {
        "model": model,
        "equal": EqualWidths([kinds[name] for name in layers], sayable(model), partial(says, model)),
    }


def _share(model: nn.Module, call: Call, unit: str) -> Callable[[torch.Tensor], torch.Tensor]:
    plain = copied(model)
    gates = sum(layer.gate.log_alpha.numel() for layer in gated_layers(model).values())
    bake(plain)
    outputs(plain, call)  # raises a clear error if the model cannot be called with the example
    by_structure = [isinstance(layer, GatedInput) for layer in gated_layers(model).values()]
    if any(by_structure) and not all(by_structure):
        raise ValueError(
            "model has gates of attach_transformer and of attach: the size with both cannot be computed; use only one "
            "of the two"
        )
    try:
        parts = (block_network if any(by_structure) else network)(model, plain, call)
    except UntraceableError as error:
        raise ValueError(f"{error}. So the size of the harvested network cannot be computed") from error
    if unit == "latency":
        return timed(parts, plain, call)
    if unit == "parameters":
        total = sum(each.numel() for each in plain.parameters())
        return Count(parts, [each.parameters for each in parts.parts], total, gates)
    return Count(parts, [each.flops for each in parts.parts], flops_of(plain, call)["Global"], gates)
