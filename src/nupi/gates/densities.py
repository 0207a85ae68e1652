"""The density of a gated model, as tensors for violations.

    expected density  = expected active parameters / parameters             for the constraint
    realised density  = parameters active with median gates / parameters    of the model at test time

The two differ: a gate that is open with probability 0.4 counts 0.4 in the first and 0 in the second. So say which one
you report. `over="gated"` counts the parameters with gates, as in the paper's experiments. `over="all"` counts all of
the network; the density then cannot fall below the share without gates. The gates' own parameters are never counted.
A closed channel also makes weights of the next layer useless. A density does not count these; budgets and `harvest` do.

    violations = {"density": nupi.gates.density(model) - 0.3}
    violations = {"layers": nupi.gates.layer_densities(model) - 0.3}        # Inequality(number of gated layers)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import nn

from nupi.gates.hard_concrete import HardConcrete
from nupi.gates.layers import Gated

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["expected", "realised"]
Over: TypeAlias = Literal["gated", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OVERS: tuple[Over, ...] = get_args(Over)


def density(model: nn.Module, *, kind: Kind = "expected", over: Over = "gated") -> torch.Tensor:
    """The density of the whole model, a scalar.

    With z_l the gates of layer l and n_l the parameters that one of them switches:

        expected    sum over l of n_l sum of P(z_l > 0) / all parameters
        realised    sum over l of n_l (number of medians of z_l above 0) / all parameters

    Args:
        model: a model with gated layers.
        kind: "expected" is differentiable in the gates. "realised" has the value at test time, and the gradient of the
            expected density, so it can be a violation too.
        over: the parameters to compare with: those that have gates, or all.

    Example:
        >>> import nupi
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> nupi.gates.attach(model, "0")
        ['0']
        >>> density(model, kind="realised").item()
        1.0
    """
    _check(kind, over)
    layers = gated_layers(model).values()
    active = torch.stack([_active(layer, kind) for layer in layers]).sum()
    gated = sum(layer.gated_parameters() for layer in layers)
    total = gated if over == "gated" else sum(each.numel() for each in weight_parameters(model))
    return (active + (total - gated)) / total


def layer_densities(model: nn.Module, *, kind: Kind = "expected", over: Over = "gated") -> torch.Tensor:
    """The density of each gated layer, a vector in the order of `gated_layers`.

    The density of layer l is n_l sum of P(z_l > 0) / (parameters of layer l); see `density`.

    Args:
        model: a model with gated layers.
        kind: as for `density`.
        over: as for `density`, but of the layer's own parameters. With gates on single weights, "gated" leaves out the
            bias.

    Example:
        >>> import nupi
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> nupi.gates.attach(model, ["0", "2"])
        ['0', '2']
        >>> layer_densities(model, kind="realised").tolist()
        [1.0, 1.0]
    """
    _check(kind, over)
    densities = []
    for layer in gated_layers(model).values():
        gated = layer.gated_parameters()
        total = gated if over == "gated" else layer.all_parameters()
        densities.append((_active(layer, kind) + (total - gated)) / total)
    return torch.stack(densities)


def gated_layers(model: nn.Module) -> dict[str, Gated]:
    """By name, the layers whose parameters have gates, in the model's order.

    Names are those of `model.named_modules()`, with the prefix of an outer module or a wrapper.

    Example:
        >>> from nupi import gates
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> _ = gates.attach(model, ["0"])
        >>> list(gated_layers(model))
        ['0']
    """
    names = {module: name for name, module in model.named_modules()}
    layers = {
        names.get(module.layer, name): module for module, name in names.items() if isinstance(module, Gated)
    }
    for name in (name for gate, name in names.items() if isinstance(gate, HardConcrete)):
        parent = model.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, nn.SyncBatchNorm):
            raise ValueError(  # noqa: TRY004
                f"the gates {name!r} are in a SyncBatchNorm, which does not use them: convert_sync_batchnorm replaced "
                "the gated norm. Convert the other norms only, one by one"
            )
    if not layers:
        raise ValueError(
            f"model, a {type(model).__name__}, has no gated layers; gate some with nupi.gates.attach"
        )
    return layers


def gate_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The gates' parameters. Give them their own optimizer, without weight decay.

    Example:
        >>> from nupi import gates
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> _ = gates.attach(model, ["0"])
        >>> [tuple(parameter.shape) for parameter in gate_parameters(model)]
        [(8,)]
    """
    yield from dict.fromkeys(layer.gate.log_alpha for layer in gated_layers(model).values())


def weight_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """All parameters of the network except those of the gates.

    Example:
        >>> from nupi import gates
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> _ = gates.attach(model, ["0"])
        >>> sum(parameter.numel() for parameter in weight_parameters(model))
        58
    """
    apart = {id(parameter) for parameter in gate_parameters(model)}
    return (parameter for parameter in model.parameters() if id(parameter) not in apart)


def _active(layer: Gated, kind: Kind) -> torch.Tensor:
    expected = layer.expected_parameters()
    if kind == "expected":
        return expected
    return layer.realised_parameters() + (expected - expected.detach())


def _check(kind: str, over: str) -> None:
    for argument, value, known in (("kind", kind, KINDS), ("over", over, OVERS)):
        if value not in known:
            raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, known))}")
