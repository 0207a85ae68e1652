"""Turn a traced step into the pieces of its native program.

The step is traced for one setting, so the trace has no batch dimension. Each node of the trace is one of:

- a constant: it depends only on fixed data, and torch computes it once
- a view: torch takes the same view of the indices of elements, which gives the new access to the same buffer
- a pointwise operation, a reduction, a product or a copy: pieces that write a buffer

An in-place operation writes through its view into the buffer, so aliases see the change, as in torch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nupi.solve.native.builder import Builder, Lane, Tensor
from nupi.solve.native.copies import COPIES, copied
from nupi.solve.native.operations import POINTWISE, Mask, Number, UnsupportedError, mask, number
from nupi.solve.native.sums import PRODUCTS, SUMS

if TYPE_CHECKING:
    from nupi.solve.native.pieces import Buffer, Piece

_SAME = ("detach", "alias", "lift_fresh")
_VIEWS = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "flatten", "unfold", "movedim"),
        *("permute", "transpose", "t", "expand", "expand_as", "unsqueeze", "squeeze", "diagonal", *_SAME),
        *("select", "slice", "narrow", "unbind", "split", "split_with_sizes"),
    )
)
_TURNED_IN_PLACE = ("squeeze_", "unsqueeze_", "t_", "transpose_")
_PICKS = ("index_select", "index", "flip", "roll", "repeat", "gather", "take")
_FILLED = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "empty_like")
_NO_OPERANDS = ("out", "dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


class _NeedsBufferError(Exception):
    """A tensor that was treated as a constant is written to, so its node must make a buffer."""

    def __init__(self, node: torch.fx.Node) -> None:
        super().__init__(str(node))
        self.node = node


@dataclass(frozen=True)
class Lowered:
    """A step as pieces, with its input and output buffers, its constants and its tables."""

    pieces: list[Piece]
    inputs: list[Buffer]
    outputs: list[Buffer]
    constants: list[torch.Tensor]
    tables: list[torch.Tensor]


def lower(traced: torch.fx.GraphModule, dtype: torch.dtype) -> Lowered:
    """The pieces of a traced step.

    Raises:
        UnsupportedError: if an operation has no native form.
    """
    buffered: set[torch.fx.Node] = set()
    while True:
        try:
            return _Lowering(traced, dtype, buffered).run()
        except _NeedsBufferError as found:  # noqa: PERF203 - a few times at most
            buffered.add(found.node)


class _Lowering:
    def __init__(
        self, traced: torch.fx.GraphModule, dtype: torch.dtype, buffered: set[torch.fx.Node]
    ) -> None:
        self.traced, self.buffered = traced, buffered
        self.build = Builder(dtype)
        self.values: dict[torch.fx.Node, Any] = {}
        self.births: dict[int, torch.fx.Node | None] = {}  # by memory of a constant, the node that made it

    def run(self) -> Lowered:
        build = self.build
        inputs: list[Buffer] = []
        outputs: list[Buffer] = []
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                lane = build.new(node.meta["val"].shape, lasting=True)
                inputs.append(lane.buffer)
                self.values[node] = lane
            elif node.op == "get_attr":
                self.values[node] = getattr(self.traced, node.target)
                self.births[_memory(self.values[node])] = None
            elif node.op == "output":
                for each in node.args[0]:
                    value = self._value(each)
                    out = build.new(value.shape, lasting=True)
                    build.compute(out, "{0}", [value])
                    outputs.append(out.buffer)
            elif node.target is operator.getitem:
                self.values[node] = self._value(node.args[0])[node.args[1]]
            else:
                self.values[node] = self._call(node)
        return Lowered(build.schedule.pieces, inputs, outputs, build.constants, build.tables.kept)

    def _value(self, given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return self.values[given]
        if isinstance(given, (list, tuple)):
            return [self._value(each) for each in given]
        return given

    def _call(self, node: torch.fx.Node) -> Any:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise UnsupportedError(f"a call of {target}")
        arguments = self._arguments(node, target)
        name = target._schema.name.split("::")[1]
        if not any(isinstance(each, Lane) for value in arguments.values() for each in _flat(value)):
            return self._constant(node, target, name, arguments)
        written = _written(target, arguments)
        if written is None:
            return self._fresh(node, target, name, arguments)
        if not isinstance(written, Lane):
            made = self.births.get(_memory(written))
            if made is None:
                raise UnsupportedError("the step writes to data of the problem")
            raise _NeedsBufferError(made)
        if name in _TURNED_IN_PLACE:  # the view replaces the tensor itself
            plain: Any = getattr(getattr(torch.ops.aten, name[:-1]), target._overloadname)
            turned = self._view(plain, name[:-1], arguments)
            whose = node.args[0]
            assert isinstance(whose, torch.fx.Node)
            self.values[whose] = turned
            return turned
        return self._pointwise(name.removesuffix("_"), arguments, written)

    def _arguments(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> dict[str, Any]:
        """All arguments of a call by name, in the order of the schema, including defaults."""
        found: dict[str, Any] = {}
        for place, argument in enumerate(target._schema.arguments):
            if place < len(node.args):
                found[argument.name] = self._value(node.args[place])
            elif argument.name in node.kwargs:
                found[argument.name] = self._value(node.kwargs[argument.name])
            elif argument.has_default_value():
                found[argument.name] = argument.default_value
        return found

    def _constant(
        self, node: torch.fx.Node, target: torch._ops.OpOverload, name: str, arguments: dict[str, Any]
    ) -> Any:
        """Compute a node that does not depend on the setting, once and now."""
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise UnsupportedError(f"{name} is random")
        written = _written(target, arguments)
        if written is not None and self.births.get(_memory(written)) is None:
            raise UnsupportedError(f"{name} changes data of the problem")
        value = target(
            *self._value(node.args), **{key: self._value(each) for key, each in node.kwargs.items()}
        )
        if node in self.buffered:
            lane = self.build.new(value.shape, truth=value.dtype == torch.bool)
            self.build.compute(lane, "{0}", [value.clone()])
            return lane
        for each in _flat(value):
            if isinstance(each, torch.Tensor):
                self.births.setdefault(_memory(each), node)
        return value

    def _fresh(
        self, node: torch.fx.Node, target: torch._ops.OpOverload, name: str, arguments: dict[str, Any]
    ) -> Any:
        """Lower an operation that writes only to new tensors."""
        if name in _VIEWS:
            return self._view(target, name, arguments)
        if name in _PICKS:
            return copied(self.build, self._view(target, name, arguments))
        result = node.meta.get("val")
        if not isinstance(result, torch.Tensor):
            raise UnsupportedError(name)
        if name in PRODUCTS:
            return PRODUCTS[name](self.build, *arguments.values())
        if name in COPIES or name in SUMS:
            # Torch calls its first tensor `self`, if anything.
            named = {"given" if key == "self" else key: value for key, value in arguments.items()}
            return (COPIES | SUMS)[name](self.build, **named)
        if result.dtype not in (self.build.dtype, torch.bool):
            raise UnsupportedError(f"{name} gives {result.dtype}")
        lane = self.build.new(result.shape, truth=result.dtype == torch.bool)
        if name in _FILLED:
            value = 1.0 if "ones" in name else float(arguments.get("fill_value", 0.0))
            self.build.compute(lane, mask(value) if lane.buffer.truth else number(value), [])
            return lane
        return self._pointwise(name, arguments, lane)

    def _pointwise(self, name: str, arguments: dict[str, Any], target: Lane) -> Lane:
        if name not in POINTWISE:
            raise UnsupportedError(name)
        operands: list[Tensor] = []
        given = []
        for key, value in arguments.items():
            if key in _NO_OPERANDS:
                continue
            if not isinstance(value, (Lane, torch.Tensor)):
                given.append(value)
                continue
            token = f"{{{len(operands)}}}"
            truth = value.buffer.truth if isinstance(value, Lane) else value.dtype == torch.bool
            given.append(Mask(token) if truth else Number(token))
            operands.append(value)
        found = POINTWISE[name](*given)
        stored = str(mask(found) if target.buffer.truth else number(found))
        # An operand that the expression does not mention, such as the target of copy_ itself, is not read.
        used = [i for i in range(len(operands)) if f"{{{i}}}" in stored]
        for new, old in enumerate(used):
            stored = stored.replace(f"{{{old}}}", f"{{{new}}}")
        self.build.compute(target, stored, [operands[i] for i in used])
        return target

    def _view(self, target: Any, name: str, arguments: dict[str, Any]) -> Any:
        first, *rest = arguments.values()
        if not isinstance(first, Lane) or any(isinstance(x, Lane) for value in rest for x in _flat(value)):
            raise UnsupportedError(f"{name} with arguments that depend on the setting")
        if name in _SAME:
            return first
        # In torch such a view depends on the memory layout; here a contiguous copy gives the same.
        index = first.index.contiguous() if name in ("view", "unfold") else first.index
        found = target(index, **dict(list(arguments.items())[1:]))
        if isinstance(found, torch.Tensor):
            return Lane(first.buffer, found)
        return [Lane(first.buffer, each) for each in found]


def _written(target: torch._ops.OpOverload, arguments: dict[str, Any]) -> Any:
    """The tensor that a call writes to, or None."""
    for argument in target._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            return arguments.get(argument.name)
    return None


def _flat(value: Any) -> list[Any]:
    return [inner for each in value for inner in _flat(each)] if isinstance(value, (list, tuple)) else [value]


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
