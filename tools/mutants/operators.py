"""Our own operators of cosmic-ray, for faults that its operators do not make.

Cosmic-ray replaces operators, comparisons, numbers and keywords. It drops no statement, fixes no condition and does not
know `in`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, TypeAlias

from cosmic_ray import plugins
from cosmic_ray.ast import get_ast
from cosmic_ray.operators.operator import Example, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Changes: TypeAlias = Iterator[
        tuple[int, str]
    ]  # the number of a node's child, and the text to put in its place

_ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "//=": "*=", "|=": "&=", "&=": "|="}
_LARGE = 100  # for larger numbers, cosmic-ray's change by 1 has no effect

OPERATORS: dict[str, type[Operator]] = {}
plugins.OPERATOR_PROVIDERS["nupi"] = OPERATORS


class _Change(Operator):  # type: ignore[misc] # cosmic-ray has no types
    """Replaces a child of a node by another text."""

    changes: Callable[[Any], Changes]
    shown: tuple[tuple[str, str], ...]

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """The ends of each text that may change, once for each change."""
        for number, _ in self.changes(node) if hasattr(node, "children") else ():
            yield node.children[number].start_pos, node.children[number].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The node after one of its changes."""
        number, text = list(self.changes(node))[index]
        node.children[number] = get_ast(node.children[number].get_first_leaf().prefix + text)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Code before and after."""
        return tuple(Example(*pair) for pair in cls.shown)


def _operator(*shown: tuple[str, str]) -> Callable[[Callable[[Any], Changes]], None]:
    """Make an operator of a function that finds the changes of a node; `shown` are examples."""

    def register(changes: Callable[[Any], Changes]) -> None:
        name, more = changes.__name__, {"changes": staticmethod(changes), "shown": shown}
        OPERATORS[name] = type(name, (_Change,), {**more, "__doc__": changes.__doc__})

    return register


@_operator(("f(x)\n", "pass\n"), ("raise E\n", "pass\n"), ("x += 1\n", "pass\n"))
def drop_statement(node: Any) -> Changes:
    """Leave out a call, a `raise`, or an assignment such as `x += 1`."""
    if node.type == "simple_stmt":
        statement = node.children[0]
        code = " ".join(statement.get_code().split())
        call = statement.type == "atom_expr" and code.endswith(")")
        raises = code.partition(" ")[0] == "raise"
        adds = statement.type == "expr_stmt" and statement.children[1] in _ASSIGNMENTS
        if call or raises or adds:
            yield 0, "pass"


@_operator(("if x: pass\n", "if True: pass\n"), ("a if x else b\n", "a if True else b\n"))
def fix_condition(node: Any) -> Changes:
    """Make a condition always true, or always false: of an `if`, a choice of two values, or a comprehension."""
    for number, before in enumerate(node.children[:-1], 1):
        if before in ("if", "elif") and node.children[number].get_code().strip() != "TYPE_CHECKING":
            yield from ((number, "True"), (number, "False"))


@_operator(("x in y\n", "x not in y\n"), ("x not in y\n", "x in y\n"))
def replace_membership(node: Any) -> Changes:
    """Replace `in` by `not in`, and the reverse."""
    for number in range(1, len(node.children), 2) if node.type == "comparison" else ():
        word = " ".join(node.children[number].get_code().split())
        if word in ("in", "not in"):
            yield number, "in" if word == "not in" else "not in"


@_operator(("x += y\n", "x -= y\n"))
def replace_assignment(node: Any) -> Changes:
    """Replace `+=` by `-=`, and similar assignments."""
    if node.type == "expr_stmt" and node.children[1] in _ASSIGNMENTS:
        yield 1, _ASSIGNMENTS[node.children[1].value]


@_operator(("x = 4096\n", "x = 4096000\n"))
def enlarge_number(node: Any) -> Changes:
    """Multiply a large number by a thousand."""
    for number, child in enumerate(node.children):
        if child.type == "number" and ast.literal_eval(child.value) >= _LARGE:
            yield number, repr(1000 * ast.literal_eval(child.value))
