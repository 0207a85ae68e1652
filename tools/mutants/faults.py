"""The faults that a Python file can have, each as a small change of its text."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}


@dataclass(frozen=True)
class Fault:
    """One change of one file."""

    path: str
    function: str
    lines: tuple[int, ...]  # lines that are run if the changed code is
    span: tuple[int, int]  # the bytes that are replaced
    before: str
    after: str
    place: int = 1  # the how-manieth of its name in the file

    @property
    def name(self) -> str:
        """What it is called in reports and in equivalent.txt; it does not depend on line numbers."""
        plain = f"{self.path} {self.function}: {_flat(self.before)} -> {_flat(self.after)}"
        return plain if self.place == 1 else f"{plain} #{self.place}"

    def applied(self, root: Path) -> str:
        """The text of the file with the fault in it."""
        text = (root / self.path).read_bytes()
        return (text[: self.span[0]] + self.after.encode() + text[self.span[1] :]).decode()


def faults_of(path: Path, root: Path) -> list[Fault]:
    """All faults of a file, those that are no valid Python left out."""
    found = _Finder(path, root)
    found.visit(ast.parse(found.text))
    seen: Counter[str] = Counter()
    faults = []
    for fault in found.faults:
        seen[fault.name] += 1
        if _compiles(fault.applied(root)):
            faults.append(replace(fault, place=seen[fault.name]))
    return faults


class _Finder(ast.NodeVisitor):
    """Walks a file, and notes what could be wrong in it."""

    def __init__(self, path: Path, root: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.path = path.relative_to(root).as_posix()
        lines = self.text.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._scope: list[str] = []
        self._statement = 0
        self.faults: list[Fault] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
        super().visit(node)

    # --- what is left alone: types, texts, decorators, imports for types, asserts ---

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scope.append(node.name)
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text that is shown: its words are not what tests are for."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """A word to the type checker."""

    def visit_keyword(self, node: ast.keyword) -> None:
        """What a call is given; `strict` of a zip guards against mistakes that are not there."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._note(node, "pass")

    # --- what may be wrong ---

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._condition(condition)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._note(node, f"({word.join(f'({ast.unparse(value)})' for value in node.values)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _OPERATORS:
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            self._note(node, f"(({left}) {_OPERATORS[type(node.op)]} ({right}))")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _OPERATORS:
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            self._note(node, f"{target} {_OPERATORS[type(node.op)]}= {value}")
        self._note(node, "pass")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._note(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            for word in _COMPARISONS.get(type(op), ()):
                parts = [f"({ast.unparse(node.left)})"]
                for j, (other, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
                    parts += [word if j == i else _word(other), f"({ast.unparse(right)})"]
                self._note(node, f"({' '.join(parts)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._note(node, str(not value))
        elif isinstance(value, (int, float)):
            # A little more of something large, such as a tolerance or a chunk, would change nothing.
            self._note(node, f"({value + 1 if abs(value) < 100 else value * 1000!r})")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._note(node, "pass")
            self.generic_visit(node)

    # --- noting it ---

    def _condition(self, test: ast.expr) -> None:
        for value in ("True", "False"):
            self._note(test, value)

    def _note(self, node: ast.stmt | ast.expr, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        span = (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )
        before = self.text.encode()[span[0] : span[1]].decode()
        touched = tuple(sorted({self._statement, *range(node.lineno, node.end_lineno + 1)}))
        self.faults.append(Fault(self.path, ".".join(self._scope) or "module", touched, span, before, after))


def _word(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _compiles(text: str) -> bool:
    try:
        compile(text, "fault", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def known_equivalent(path: Path) -> Iterator[str]:
    """The names of faults that change nothing; the line before each says why."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()
