"""Trace a model into a graph whose nodes are whole layers."""

from __future__ import annotations

import copy
import inspect
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from nupi.gates.call import Call
from nupi.gates.layers import Gated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nupi.gates.call import Example

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class UntraceableError(ValueError):
    """`torch.fx` cannot turn the model into a graph."""


def trace(model: nn.Module, example: Example | Call | None = None) -> fx.Graph:
    """The graph of one forward pass, whose layers are `call_module` nodes. The model is left as it was.

    Args:
        model: any model.
        example: the arguments of the call, which give the shapes for `shape_of`. Unless given, the call has the first
            argument and those without a default. All others have their defaults.

    Raises:
        UntraceableError: the forward pass depends on values, or has arguments that a graph cannot have.
    """
    with unchanged(model):
        call = None if example is None else Call.of(example)
        try:
            graph = _LayerTracer(call).trace(model)
            if call is not None:
                with torch.no_grad():
                    _Shapes(model, graph, call.named).run(*call.positional)
        except Exception as error:  # tracing runs the user's own code, which may raise anything
            raise UntraceableError(
                f"torch.fx cannot trace {type(model).__name__}: {type(error).__name__}: {error}"
            ) from error
    return graph


def inside_wrapper(model: nn.Module) -> str | None:
    """The attribute of a torch wrapper (DistributedDataParallel, torch.compile, …) that holds the wrapped model."""
    home = type(model).__module__
    if not home.startswith("torch.") or home.startswith("torch.nn.modules."):
        return None
    found = [each for each in ("_orig_mod", "module") if isinstance(getattr(model, each, None), nn.Module)]
    return found[0] if found else None


def shape_of(node: fx.Node) -> torch.Size | None:
    """The shape of a node's output, if that is one tensor."""
    return node.meta.get("shape")


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Undo all changes by the forward pass: attributes, entries of lists and dicts, buffers, random state."""
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    contents = [
        (value, copy.copy(value))
        for _, own in attributes
        for value in own.values()
        if isinstance(value, dict | list | set)
    ]
    buffers = [(each, each.clone(), each._version) for each in model.buffers() if not each.is_inference()]
    cards = {each.device.index for each in model.parameters() if each.device.type == "cuda"}
    host = random.getstate()
    try:
        with torch.random.fork_rng(list(cards)):
            yield
    finally:
        random.setstate(host)
        for module, own in attributes:
            vars(module).clear()
            vars(module).update(own)
        for value, before in contents:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
        with torch.no_grad():
            for buffer, old, version in buffers:
                if buffer._version != version:
                    buffer.copy_(old)


class _LayerTracer(fx.Tracer):
    """Traces inside the user's modules. Torch's layers, their subclasses and gated layers are one node each."""

    def __init__(self, call: Call | None) -> None:
        super().__init__()
        self._call = Call.of(torch.empty(0)) if call is None else call

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, Gated) or super().is_leaf_module(m, module_qualified_name):
            return True
        from_torch = [base for base in type(m).__mro__ if base.__module__.startswith("torch.nn.modules.")]
        return from_torch[0] is not nn.Module and not isinstance(m, CONTAINERS)

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,  # noqa: FBT001 - torch's signature
        concrete_args: Any = None,
    ) -> tuple[Any, list[Any]]:
        """The arguments for tracing: proxies for tensors, the call's own values for all that a branch can depend on.

        A proxy is never None and never false, so with it the trace would always take the branch for an argument that is
        given. torch's own `concrete_args` would put its checks into the graph.
        """
        parameters = inspect.signature(inspect.unwrap(root_fn)).parameters
        positional = [
            name for name, each in parameters.items() if each.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD
        ][1:]
        given = dict(zip(positional, self._call.positional, strict=False)) | dict(self._call.named)
        others = {name: value for name, value in self._call.named.items() if name not in parameters}
        if tensors := [name for name, value in others.items() if isinstance(value, torch.Tensor)]:
            raise TypeError(f"the tensor {tensors[0]!r} goes into **, where a graph cannot follow it")
        function, (model, *proxies) = super().create_args_for_root(root_fn, is_module, concrete_args)
        arguments: list[Any] = [model]
        for proxy in proxies:
            name = proxy.node.target
            if name in given:
                value = given[name]
                arguments.append(
                    value if value is None or isinstance(value, bool | int | float | str) else proxy
                )
            elif name.startswith("**"):
                arguments.append(others)
            elif name.startswith("*"):
                arguments.append(proxy if len(self._call.positional) > len(positional) else ())
            else:
                default = parameters[name].default
                arguments.append(proxy if default is inspect.Parameter.empty else default)
        return function, arguments


class _Shapes(fx.Interpreter):
    """Runs the graph, and notes the shape of every tensor."""

    def __init__(self, model: nn.Module, graph: fx.Graph, named: Mapping[str, Any]) -> None:
        super().__init__(model, graph=graph)
        self._named = named
        self.extra_traceback = False  # keeps the model's error message as it is

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._named[target] if target in self._named else super().placeholder(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["shape"] = result.shape
        return result
