"""Trace the step of one setting into a flat list of torch operations, without the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nupi.solve.step import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def trace_one(
    step: Callable[..., list[torch.Tensor]], tensors: Sequence[torch.Tensor], *, simplify: bool
) -> torch.fx.GraphModule:
    """Trace a step at the first setting of a batch.

    Args:
        step: moves the tensors of one setting, and returns what it records.
        tensors: the tensors of the batch, the setting in the last dimension.
        simplify: replace operations by simpler ones where torch has a definition.
    """
    table = _definitions() if simplify else None
    ones = [tensor.select(-1, 0).clone() for tensor in tensors]
    with tracing():
        traced = make_fx(step, decomposition_table=table)(*ones)
    traced.graph.eliminate_dead_code()
    return traced


def _definitions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Torch's own definitions of operations in terms of simpler ones."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    more = {
        operation: definition
        for operation, definition in decomposition_table.items()
        if isinstance(operation, torch._ops.OpOverload) and operation._schema.name.split("::")[1] in _ALSO
    }
    return {**core_aten_decompositions(), **more}


# Torch calls these basic, but has definitions for them.
_ALSO = (
    *("gelu", "gelu_backward", "silu", "silu_backward", "elu", "elu_backward", "logsumexp"),
    *("leaky_relu", "leaky_relu_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "linalg_vector_norm"),
    *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    *("native_layer_norm", "native_layer_norm_backward"),
)
