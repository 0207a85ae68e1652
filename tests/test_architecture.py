"""docs/architecture.md is true: its paths exist, its walk is the one that is walked, imports point one way."""

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import nupi

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "nupi"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FACE = ("__init__", "__main__")

# From the bottom up: a part may import the parts of earlier lines, never one of its own line or of a later one.
LAYERS = (
    {"tensors", "rule", "files", "plant"},
    {"constraints"},
    {"optim", "violations"},
    {"ascent", "theory", "tune", "implicit"},
    {"distributed"},
    {"multipliers"},
    {"lagrangian"},
    {"monitor"},
    {"solve", "rates", "gates", "loop"},
    {"integrations"},
    {"paper"},
    set(FACE),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_part(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(tree, *, functions):
    """The imports of a file that happen at run time; with `functions`, those inside of functions too."""
    found, todo = [], list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif is_for_types(node):
            todo += node.orelse
        elif functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return found


def modules(node):
    """What an import names, as dotted names. A name from the face counts as the module that it comes from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative imports hide where they point"
    if node.module != "nupi":
        return [node.module]
    return [ORIGIN.get(alias.name, f"nupi.{alias.name}") for alias in node.names]


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


ORIGIN = {
    alias.asname or alias.name: node.module
    for node in ast.walk(parse(PACKAGE / "__init__.py"))
    if isinstance(node, ast.ImportFrom) and node.module != "nupi"
    for alias in node.names
}


def own_parts(path, *, functions=True):
    """The other parts of nupi that a file imports."""
    named = [name for node in statements(parse(path), functions=functions) for name in modules(node)]
    parts = {
        name.split(".")[1] if "." in name else "__init__" for name in named if name.split(".")[0] == "nupi"
    }
    return {part for part in parts if part != "__version__"} - {part_of(path)}


def id_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=id_of)
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in LEVEL, f"say in LAYERS where {part!r} stands"
    for other in own_parts(path):
        assert other in LEVEL, f"say in LAYERS where {other!r} stands"
        if part not in FACE and part != "paper":  # whoever stands above all may import all
            assert LEVEL[other] < LEVEL[part], (
                f"{id_of(path)} imports nupi.{other}, which stands above nupi.{part}"
            )


def test_nothing_imports_paper():
    """Not even for its types; the command alone does, when it is run."""
    importers = set()
    for path in FILES:
        imports = [node for node in ast.walk(parse(path)) if isinstance(node, (ast.Import, ast.ImportFrom))]
        if any(name.startswith("nupi.paper") for node in imports for name in modules(node)):
            importers.add(part_of(path))
    assert importers <= {"paper", "__main__"}


# Modules that need an extra, and are imported only where it is asked for.
LATE = {
    "monitor/command.py": {"rich", "typer"},
    "monitor/terminal.py": {"rich"},
    "gates/transformer/conv1d.py": {"transformers"},
}


@pytest.mark.parametrize(
    "path", [path for path in FILES if part_of(path) not in ("paper", "integrations")], ids=id_of
)
def test_the_core_imports_torch_and_the_standard_library_alone(path):
    allowed = LATE.get(id_of(path), set())
    named = {name for node in statements(parse(path), functions=False) for name in modules(node)}
    others = {name.split(".")[0] for name in named} - {"nupi", "torch"} - sys.stdlib_module_names
    assert others == allowed
    if allowed:  # and nobody imports it but late, inside a function, or as a command
        module = f"nupi.{id_of(path).removesuffix('.py').replace('/', '.')}"
        for other in FILES:
            early = {name for node in statements(parse(other), functions=False) for name in modules(node)}
            assert module not in early or id_of(other) in {*LATE, "paper/command.py"}, id_of(other)


def test_the_check_of_imports_sees_what_it_should():
    code = """
import numpy
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nupi.paper import runner
else:
    import scipy
try:
    from nupi import Lagrangian, rule
except ImportError:
    pass
def late():
    import pandas
"""
    everything, at_once = (
        {name for node in statements(ast.parse(code), functions=functions) for name in modules(node)}
        for functions in (True, False)
    )
    assert at_once == {"numpy", "typing", "scipy", "nupi.lagrangian", "nupi.rule"}
    assert everything == {*at_once, "pandas"}


def test_every_path_of_the_page_exists():
    named = re.findall(r"`((?:src|tests|docs|benchmarks|examples|tools)/[\w./-]*)`", PAGE)
    named += [str(Path("docs") / link) for link in re.findall(r"\]\(([\w./-]+)\)", PAGE)]
    assert len(named) > 30
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_map_has_every_part_and_no_other():
    block = PAGE.split("```")[1]
    mapped = {
        line.split()[0].rstrip("/").removesuffix(".py")
        for line in block.splitlines()
        if line.startswith("  ")
    }
    there = {part_of(path) for path in FILES}
    assert mapped == there


def test_the_pages_order_of_imports_is_the_one_that_is_checked():
    order = next(line for line in PAGE.splitlines() if line.startswith("paper, integrations ->"))
    lines = [[LEVEL[part.strip()] for part in group.split(",")] for group in order.split("->")]
    for above, below in pairwise(lines):
        assert min(above) > max(below)


def walked(call):
    """File and function of every call into the package."""
    calls, package = [], Path(nupi.__file__).parent

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and package in path.parents:
            calls.append((f"src/nupi/{path.relative_to(package).as_posix()}", frame.f_code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def table_under(heading):
    section = PAGE.split(heading)[1].split("\n\n")[1]
    return re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", section, re.MULTILINE)


def test_the_walk_of_the_page_is_the_one_that_is_walked():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(3)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    violations = {"c": torch.ones(3)}
    lagrangian.ascend(dual, violations)
    for heading, call, length in (
        ("From the loop to the multiplier", lambda: lagrangian.ascend(dual, violations), 15),
        ("back from the multiplier to the model", lambda: lagrangian(torch.zeros(()), violations), 3),
    ):
        stations, passed = table_under(heading), iter(walked(call))
        assert len(stations) == length
        for station in stations:
            assert station in passed, f"{station} is not passed, or not in this order"
