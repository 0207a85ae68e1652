import subprocess
import sys
from importlib.metadata import metadata, requires
from importlib.resources import files

import pytest

import nupi


def fresh(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_needs_torch_alone():
    heavy = "numpy scipy pandas sklearn matplotlib rich typer fairlearn cooper"
    code = f"""
import sys, torch
before = set(sys.modules)
import nupi
print(sorted(set("{heavy}".split()) & (set(sys.modules) - before)))
"""
    assert fresh(code).strip() == "[]"


def test_torch_is_the_only_core_dependency():
    core = [line for line in requires("nupi") if "extra ==" not in line]
    assert len(core) == 1
    assert core[0].startswith("torch")
    assert metadata("nupi")["License-Expression"] == "MIT"


def test_the_face_is_complete_and_typed():
    assert all(hasattr(nupi, name) for name in nupi.__all__)
    assert files("nupi").joinpath("py.typed").is_file()


@pytest.mark.parametrize("part", [nupi, nupi.distributed, nupi.tune], ids=lambda part: part.__name__)
def test_a_part_shows_what_is_meant_for_users_and_nothing_else(part):
    assert {name for name in dir(part) if not name.startswith("__")} == set(part.__all__)
    assert all(hasattr(part, name) for name in part.__all__)
