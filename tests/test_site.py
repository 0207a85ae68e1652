"""The site: every public name is in the reference, with words and an example; what a page shows runs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = ("nupi", "nupi.rates", "nupi.gates", "nupi.theory", "nupi.monitor", "nupi.distributed", "nupi.tune")

# Pages whose code is a whole program.
PROGRAMS = ("start/first_run.md", "howto/fairness.md", "rates.md")


def public() -> list[str]:
    names = []
    for part in PARTS:
        module = importlib.import_module(part)
        own = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == part and name[0] != "_"
        ]
        names += [f"{part}.{name}" for name in own if not inspect.ismodule(getattr(module, name))]
    return names


def documented() -> set[str]:
    pages = (DOCS / "reference").glob("*.md")
    return set(re.findall(r"^::: (\S+)", "\n".join(page.read_text() for page in pages), re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    shown = documented()
    objects = {id(_object(name)) for name in shown}
    missing = [name for name in public() if not _is_shown(name, shown, objects)]
    assert not missing, f"add to a page in docs/reference: {missing}"


def _is_shown(name: str, shown: set[str], objects: set[int]) -> bool:
    # A name may be public in two places; a module that is shown shows all it has.
    return name in shown or name.rpartition(".")[0] in shown or id(_object(name)) in objects


def _object(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", public())
def test_every_public_name_has_words(name: str) -> None:
    assert inspect.getdoc(_object(name)), f"{name} has no docstring"


@pytest.mark.parametrize("page", PROGRAMS)
def test_what_a_page_shows_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And prints what the page says it prints, where it does."""
    text = (DOCS / page).read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert program is not None
    exec(compile(program.group(1), page, "exec"), {"__name__": "page"})
    shown = re.search(r"It prints:\n\n```text\n(.*?)```", text, re.DOTALL)
    if shown is not None:
        assert capsys.readouterr().out == shown.group(1)


def test_every_figure_has_a_text_for_those_who_cannot_see_it() -> None:
    for page in DOCS.rglob("*.md"):
        for text, image in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text()):
            assert len(text) > 20, f"{page.name}: {image} has the alternative text {text!r}"
            assert (page.parent / image).exists(), f"{page.name} shows {image}, which is not there"
