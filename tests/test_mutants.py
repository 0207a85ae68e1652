"""The mutants of `make mutants`: which faults a file can have, and which change nothing that a test is for."""

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from tools.mutants.faults import fault_of, known_equivalent, mutations_of
from tools.mutants.operators import OPERATORS

ROOT = Path(__file__).parents[1]
SOURCE = '''\
"""A file."""


def f(x: int | None, *, y: int = 1) -> int | None:
    """Text."""
    z: list[int | None] = [x]
    assert x is not None
    if x in (y, 7) and x == 2:
        g(
            x,
            f"{x + 1}",
        )
    x += 4096
    return x + y
'''


@pytest.fixture
def faults(tmp_path):
    (tmp_path / "file.py").write_text(SOURCE)
    made = (fault_of(each, tmp_path) for each in mutations_of(tmp_path / "file.py", tmp_path))
    return {fault.name: fault for fault in made if fault is not None}


def test_cosmic_ray_knows_our_operators_and_they_do_what_they_show():
    for name, kind in OPERATORS.items():
        assert get_operator(f"nupi/{name}") is kind
        for example in kind.examples():
            assert mutate_code(example.pre_mutation_code, kind(), 0) == example.post_mutation_code
    assert len([name for name in operator_names() if name.startswith("core/")]) > 100


@pytest.mark.parametrize(
    "change",
    [
        "if x in (y, 7) and x == 2: -> if True:",
        "if x in (y, 7) and x == 2: -> if x not in (y, 7) and x == 2:",
        "if x in (y, 7) and x == 2: -> if x in (y, 7) or x == 2:",
        "if x in (y, 7) and x == 2: -> if x in (y, 7) and x >= 2:",
        "if x in (y, 7) and x == 2: -> if not x in (y, 7) and x == 2:",
        'g( x, f"{x + 1}", ) -> pass',
        "x += 4096 -> x -= 4096",
        "x += 4096 -> x += 4096000",
        "x += 4096 -> pass",
        "return x + y -> return x * y",
    ],
)
def test_operators_of_cosmic_ray_and_ours_are_in_one_population(faults, change):
    fault = faults[f"file.py f: {change}"]
    old, new = change.split(" -> ")
    first = next(i for i, line in enumerate(SOURCE.splitlines(), 1) if line.strip().startswith(old[:2]))
    assert first in fault.lines  # by which the tests are chosen that run it
    assert new in " ".join(fault.text.split())


def test_types_texts_and_what_is_no_python_are_left_out(faults):
    for fault in faults.values():
        lines = fault.text.splitlines()
        assert lines[5:7] == SOURCE.splitlines()[5:7]  # the list's type and the assert
        assert lines[3].replace("int = 0", "int = 1").replace("int = 2", "int = 1") == SOURCE.splitlines()[3]
        assert 'f"{x + 1}"' in fault.text or "pass" in fault.text
        compile(fault.text, "file.py", "exec")


def test_the_how_manieth_line_of_its_kind_is_told(tmp_path):
    (tmp_path / "file.py").write_text("def f():\n    g()\n\n\ndef h():\n    g()\n")
    made = [fault_of(each, tmp_path) for each in mutations_of(tmp_path / "file.py", tmp_path)]
    assert [fault.name for fault in made] == ["file.py f: g() -> pass", "file.py h: g() -> pass #2"]


def test_equivalent_faults_are_of_lines_that_are_there(tmp_path):
    assert known_equivalent(ROOT / "tools/mutants/equivalent.txt", ROOT)
    (tmp_path / "stale.txt").write_text("# why\nsrc/nupi/rule.py module: gone = 1 -> gone = 2\n")
    with pytest.raises(SystemExit, match=r"a line that is not there: .*gone = 1"):
        known_equivalent(tmp_path / "stale.txt", ROOT)
