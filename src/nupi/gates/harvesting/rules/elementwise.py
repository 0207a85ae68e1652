"""Elementwise functions. They differ in whether they map zero to zero."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from nupi.gates.harvesting.rules.common import NotCoveredError, Rule, argument, is_number, of_followed, shape

if TYPE_CHECKING:
    from torch import fx

    from nupi.gates.harvesting.channels import Flow
    from nupi.gates.harvesting.flow import Walk

# f(0) = 0: a channel that is zero stays so.
ZERO_TO_ZERO: set[Any] = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Hardswish, nn.Softsign, nn.Tanhshrink, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
    *(functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.selu),
    *(functional.celu, functional.gelu, functional.silu, functional.mish, functional.hardswish),
    *(functional.relu_, functional.leaky_relu_, functional.elu_, functional.dropout, functional.dropout1d),
    *(functional.dropout2d, torch.relu, torch.tanh, torch.abs, torch.square, torch.neg, operator.neg),
    *("relu", "relu_", "tanh", "abs", "square", "neg", "contiguous", "clone", "detach"),
    *("to", "float", "double", "half", "bfloat16", "type_as"),
}
# f(0) is not 0: the channel is followed, but it is no longer zero.
LIGHTS_UP: set[Any] = {
    *(nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.LogSigmoid),
    *(torch.sigmoid, functional.sigmoid, functional.hardsigmoid, functional.softplus, torch.exp),
    *("sigmoid", "exp"),
}
# Which of the two it is depends on their other arguments.
POWERS: set[Any] = {operator.pow, torch.pow, "pow"}
CLAMPS: set[Any] = {torch.clamp, "clamp", functional.hardtanh}


@of_followed
def _zero_to_zero(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    return source.but(shape(node))


@of_followed
def _lights_up(_walk: Walk, node: fx.Node, _: Any, source: Flow) -> Flow | None:
    return source.always_alive(shape(node))


def _power(walk: Walk, node: fx.Node, _: Any) -> Flow | None:
    exponent = argument(node, 1, "exponent", None)
    if not is_number(exponent):
        raise NotCoveredError("the exponent must be a number")
    return (_zero_to_zero if exponent > 0 else _lights_up)(walk, node, None)


def _clamp(walk: Walk, node: fx.Node, module: Any) -> Flow | None:
    if module is not None:
        low, high = module.min_val, module.max_val
    elif node.target is functional.hardtanh:
        low, high = argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)
    else:
        low, high = argument(node, 1, "min", None), argument(node, 2, "max", None)
    if not all(bound is None or is_number(bound) for bound in (low, high)):
        raise NotCoveredError("its bounds must be numbers")
    has_zero = (low is None or low <= 0) and (high is None or high >= 0)
    return (_zero_to_zero if has_zero else _lights_up)(walk, node, None)


def _prelu(walk: Walk, node: fx.Node, prelu: Any) -> Flow | None:
    if prelu.num_parameters != 1:
        raise NotCoveredError("it has one slope per channel")
    return _zero_to_zero(walk, node, prelu)


ELEMENTWISE: dict[Any, Rule] = {
    **dict.fromkeys(ZERO_TO_ZERO, _zero_to_zero),
    **dict.fromkeys(LIGHTS_UP, _lights_up),
    **dict.fromkeys(POWERS, _power),
    **dict.fromkeys(CLAMPS, _clamp),
    nn.Hardtanh: _clamp,
    nn.PReLU: _prelu,
}
