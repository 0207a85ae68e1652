"""A model as a graph of whole layers."""

from __future__ import annotations

from torch import fx, nn

from nupi.gates.layers import Gated


class UntraceableError(ValueError):
    """`torch.fx` cannot turn the model into a graph."""


class _LayerTracer(fx.Tracer):
    """Looks into the user's modules, and takes torch's layers and the gated ones whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Gated) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.Graph:
    """The graph of one forward pass, whose layers are `call_module` nodes.

    Raises:
        UntraceableError: the forward pass depends on values, or has arguments that a graph cannot stand for.
    """
    try:
        return _LayerTracer().trace(model)
    except Exception as error:  # tracing runs the user's own code, which may raise anything
        raise UntraceableError(
            f"torch.fx cannot trace {type(model).__name__}: {type(error).__name__}: {error}"
        ) from error
