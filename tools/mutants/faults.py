"""The faults of a Python file: the mutants that cosmic-ray makes of it, with its operators and with ours."""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tools.mutants import operators  # noqa: F401 - cosmic-ray knows ours once it is imported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import CodeType


@dataclass(frozen=True)
class Mutation:
    """A place where an operator can change a file. The changed text is made only when needed."""

    path: str
    function: str
    operator: str  # as cosmic-ray names it
    occurrence: int
    lines: tuple[int, ...]  # lines that are run if the changed code is

    @property
    def label(self) -> str:
        """What it can be chosen by."""
        return f"{self.path} {self.function} {self.operator}"


@dataclass(frozen=True)
class Fault:
    """One change of one file that could make a difference to a test."""

    path: str
    lines: tuple[int, ...]
    name: str  # in reports and in equivalent.txt; it does not depend on line numbers
    text: str  # of the file, with the fault in it


def mutations_of(path: Path, root: Path) -> Iterator[Mutation]:
    """All mutations of a file, in an order that does not change."""
    text = path.read_text(encoding="utf-8")
    nodes, statements = list(ast_nodes(get_ast(text))), _statements(text)
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():  # cosmic-ray cannot know the names of variables that these ask for
            continue
        positions = ((node, *ends) for node in nodes for ends in kind().mutation_positions(node))
        for occurrence, (node, start, end) in enumerate(positions):
            if node.parent is not None and node.parent.type == "parameters":
                continue  # a bare * in a signature, which is no product
            first = statements.get(start[0], start[0])
            lines = tuple(range(first, end[0] + 1))
            yield Mutation(path.relative_to(root).as_posix(), _function(node), name, occurrence, lines)


def fault_of(mutation: Mutation, root: Path) -> Fault | None:
    """The fault of a mutation; None if the changed file is not valid Python, or tests are not meant to find it."""
    before = (root / mutation.path).read_text(encoding="utf-8")
    after = mutate_code(before, get_operator(mutation.operator)(), mutation.occurrence)
    if after is None or _bytecode(after) in (None, _bytecode(before)):
        return None
    old, new, place = _difference(before.splitlines(), after.splitlines())
    name = f"{mutation.path} {mutation.function}: {old} -> {new}"
    return Fault(mutation.path, mutation.lines, name if place == 1 else f"{name} #{place}", after)


def known_equivalent(file: Path, root: Path) -> set[str]:
    """The names of equivalent faults; the line above each says why. The lines that they change must exist."""
    names = {
        line.strip()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    }
    for name in sorted(names):
        path, _, change = name.partition(" ")
        old = change.partition(": ")[2].partition(" -> ")[0]
        if old not in _flat((root / path).read_text(encoding="utf-8").splitlines()):
            sys.exit(f"{file.name} names a fault of a line that is not there: {name}")
    return names


def _difference(before: list[str], after: list[str]) -> tuple[str, str, int]:
    """The lines that differ, each joined to one line, and which occurrence of the old line in the file it is."""
    first = next(i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    left, right = len(before), len(after)
    while min(left, right) > first and before[left - 1] == after[right - 1]:
        left, right = left - 1, right - 1
    old, new = _flat(before[first:left]), _flat(after[first:right])
    return old, new, 1 + sum(_flat(before[i : i + left - first]) == old for i in range(first))


def _flat(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def _function(node: Any) -> str:
    names: list[str] = []
    while (node := node.search_ancestor("funcdef", "classdef")) is not None:
        names.insert(0, node.name.value)
    return ".".join(names) or "module"


def _statements(text: str) -> dict[int, int]:
    """By line, the line at which its statement begins."""
    begins: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):  # outer statements come first
        if isinstance(node, ast.stmt):
            begins |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
    return begins


@cache
def _bytecode(text: str) -> CodeType | None:
    """The bytecode of a text, without line numbers and parts that need no test; None if it is not valid Python.

    None also if Python warns of it, as of `x is "mean"`: every test would fail just for the warning.
    """
    try:
        tree = _Plain().visit(ast.parse(text))
        for node in ast.walk(tree):
            node.__dict__.update(dict.fromkeys(node._attributes, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return compile(tree, "fault", "exec")
    except (SyntaxError, ValueError):
        return None


class _Plain(ast.NodeTransformer):
    """Removes types, imports for types, asserts (they are for the type checker), and texts of messages."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if "TypeAlias" in ast.unparse(node.annotation):
            return ast.Pass()
        node.annotation = ast.Constant("")
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:  # noqa: ARG002
        return ast.Pass()

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:  # noqa: ARG002
        return ast.Constant("")

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        """`strict` of a zip has an effect only if there is a bug."""
        if node.arg == "strict":
            node.value = ast.Constant(None)
        return self.generic_visit(node)
