"""The site: every public name is in the reference, with words and an example; what a page shows runs."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nupi

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = (
    "nupi",
    "nupi.constraints",
    "nupi.distributed",
    "nupi.gates",
    "nupi.integrations.lightning",
    "nupi.integrations.sklearn",
    "nupi.integrations.transformers",
    "nupi.monitor",
    "nupi.optim",
    "nupi.rates",
    "nupi.theory",
    "nupi.tune",
    "nupi.violations",
)

# Pages whose code is a whole program.
PROGRAMS = (
    "start/first_run.md",
    "howto/fairness.md",
    "rates.md",
    "howto/checkpoints.md",
    "howto/language_models.md",
    "howto/mixed_precision.md",
    "howto/per_sample.md",
    "howto/pinn.md",
    "howto/safe_rl.md",
)
# Between which values the first number lies that such a program prints, where its page says what it is.
PRINTED = {
    "howto/language_models.md": (0.09, 0.11),
    "howto/mixed_precision.md": (0.27, 0.33),
    "howto/per_sample.md": (0.73, 0.79),
    "howto/pinn.md": (0.0, 0.03),
    "howto/safe_rl.md": (0.27, 0.33),
}

# Names in the reference that have no example of their own, and why.
WITHOUT_EXAMPLE = {
    "nupi.monitor.KINDS": "a tuple has no docstring of its own; the example of nupi.Finding shows it",
}
# Names that compute nothing that an equation could say.
WITHOUT_EQUATION = {
    "errors": (
        "nupi.ConstraintWarning",
        "nupi.NonFiniteMultiplierError",
        "nupi.NonFiniteViolationError",
        "nupi.distributed.PeerRefusedError",
        "nupi.gates.HarvestError",
    ),
    "records and results": (
        "nupi.Finding",
        "nupi.Monitor",
        "nupi.Solution",
        "nupi.Status",
        "nupi.gates.Harvest",
        "nupi.monitor.KINDS",
        "nupi.monitor.Played",
        "nupi.monitor.Record",
        "nupi.monitor.diagnose",
        "nupi.monitor.judge",
        "nupi.monitor.read",
        "nupi.monitor.replay",
        "nupi.tune.Bisection",
        "nupi.tune.GridRun",
        "nupi.tune.GridSearch",
        "nupi.tune.Run",
        "nupi.violations.Move",
        "nupi.violations.Parts",
        "nupi.violations.Target",
    ),
    "what says something by name, finds it, changes it in place, or keeps it on disk": (
        "nupi.distributed.world_size",
        "nupi.gates.attach",
        "nupi.gates.attach_transformer",
        "nupi.gates.from_pretrained",
        "nupi.gates.gate_parameters",
        "nupi.gates.gated_layers",
        "nupi.gates.harvest",
        "nupi.gates.save_pretrained",
        "nupi.gates.weight_parameters",
        "nupi.rates.Expression",
        "nupi.rates.Groups",
        "nupi.rates.crossed",
        "nupi.rates.stack",
        "nupi.violations.as_violation",
    ),
    "front ends, which run a training that others define": (
        "nupi.integrations.lightning.ConstrainedCallback",
        "nupi.integrations.lightning.ConstrainedMixin",
        "nupi.integrations.sklearn.ConstrainedClassifier",
        "nupi.integrations.sklearn.constrained_scorer",
        "nupi.integrations.transformers.ConstrainedMixin",
        "nupi.integrations.transformers.ConstrainedTrainer",
    ),
    "the equation is that of the name it refers to": (
        "nupi.gates.GatedBatchNorm1d",
        "nupi.gates.GatedConv1d",
        "nupi.gates.HeadAttention",
    ),
}


def public() -> list[str]:
    names = []
    for part in PARTS:
        try:
            module = importlib.import_module(part)
        except ImportError:  # a front end whose extra is not installed
            assert part.startswith("nupi.integrations.")
            continue
        names += [f"{part}.{name}" for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return names


def documented() -> set[str]:
    pages = (DOCS / "reference").glob("*.md")
    return set(re.findall(r"^::: (\S+)", "\n".join(page.read_text() for page in pages), re.MULTILINE))


def test_every_package_of_the_library_is_looked_at() -> None:
    """A new package with names for users belongs into `PARTS`; these have none."""
    own = {f"nupi.{each.name}" for each in pkgutil.iter_modules(nupi.__path__) if each.name[0] != "_"}
    inside = {
        "nupi.ascent",
        "nupi.files",
        "nupi.implicit",
        "nupi.integrations",
        "nupi.lagrangian",
        "nupi.loop",
        "nupi.multipliers",
        "nupi.paper",
        "nupi.plant",
        "nupi.rule",
        "nupi.solve",
    }
    assert own - inside <= set(PARTS)


def test_every_public_name_is_in_the_reference() -> None:
    shown = documented()
    objects = {id(_object(name)) for name in shown}
    missing = [name for name in public() if not _is_shown(name, shown, objects)]
    assert not missing, f"add to a page in docs/reference: {missing}"


def _is_shown(name: str, shown: set[str], objects: set[int]) -> bool:
    # A name may be public in two places; a module that is shown shows all it has.
    return name in shown or name.rpartition(".")[0] in shown or id(_object(name)) in objects


def _object(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    # The attribute first: a function may stand in a module of the same name.
    shown = getattr(importlib.import_module(module), attribute, None)
    return importlib.import_module(name) if shown is None else shown


@pytest.mark.parametrize("name", public())
def test_every_public_name_has_words(name: str) -> None:
    assert inspect.getdoc(_object(name)), f"{name} has no docstring"


@pytest.mark.parametrize("name", sorted(documented() - set(WITHOUT_EXAMPLE)))
def test_every_name_in_the_reference_has_an_example(name: str) -> None:
    if name.startswith("nupi.integrations."):
        pytest.importorskip(name.split(".")[2])
    shown = _object(name)
    # A module is shown with what is in it, which has the examples.
    inside = [part for part in vars(shown).values() if getattr(part, "__module__", "") == name]
    parts = inside if inspect.ismodule(shown) else [shown]
    # Not inspect.getdoc, which would take the docstring of a base class.
    assert any(">>>" in (getattr(part, "__doc__", None) or "") for part in parts), (
        f"give the docstring of {name} an `Example:` with a line that begins with >>>"
    )


@pytest.mark.parametrize("name", sorted(set(public()) - set(WITHOUT_EXAMPLE)))
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(_object(name), "__doc__", None) or "")


def _excused() -> set[str]:
    return {name for names in WITHOUT_EQUATION.values() for name in names}


def _with_equation() -> list[str]:
    excused = {id(_object(name)) for name in _excused() if name in public()}
    return sorted(name for name in public() if id(_object(name)) not in excused)


@pytest.mark.parametrize("name", _with_equation())
def test_every_public_name_has_its_equation(name: str) -> None:
    """Names that compute something say what, before their arguments and their example."""
    words = re.split(r"\n\s*(?:Args|Example|Returns):", inspect.getdoc(_object(name)) or "")[0]
    # An equation, an inequality, a ratio, or a number such as "FN / all".
    assert re.search(r"\S (=|<-|<=|>=|/|<|\+) \S", words), (
        f"say what {name} computes, or excuse it in WITHOUT_EQUATION"
    )


def test_exceptions_are_still_in_the_reference() -> None:
    assert set(WITHOUT_EXAMPLE) <= documented()
    assert _excused() <= documented()


@pytest.mark.parametrize("page", PROGRAMS)
def test_what_a_page_shows_runs(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And prints what the page says it prints, where it does."""
    if page == "howto/language_models.md":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)  # a program may write where it is
    text = (DOCS / page).read_text()
    exec(compile(_program(text), page, "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    shown = re.search(r"It prints:\n\n```text\n(.*?)```", text, re.DOTALL)
    if shown is not None:
        assert printed == shown.group(1)
    if page in PRINTED:
        least, most = PRINTED[page]
        assert least <= float(re.findall(r"\d+\.\d+", printed)[0]) <= most


@pytest.mark.nightly
def test_the_program_for_many_processes_runs_on_two(tmp_path: Path) -> None:
    """As the page says to run it: both ranks end with the same multiplier.

    Torch 2.13 with gloo may abort a process after its last line, with nupi and without, as the page says.
    """
    (tmp_path / "train.py").write_text(_program((DOCS / "howto/many_processes.md").read_text()))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    multipliers = re.findall(r"Inequality\(1\) at ([\d.]+)", done.stdout)
    assert len(multipliers) == 2
    assert len(set(multipliers)) == 1


def _program(text: str) -> str:
    """The first block of code of a page."""
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_every_figure_has_a_text_for_those_who_cannot_see_it() -> None:
    for page in DOCS.rglob("*.md"):
        for text, image in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text()):
            assert len(text) > 20, f"{page.name}: {image} has the alternative text {text!r}"
            assert (page.parent / image).exists(), f"{page.name} shows {image}, which is not there"


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_figure_of_a_notebook_has_such_a_text(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        shown = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        assert not shown or len(cell["metadata"].get("alt", "")) > 20, (
            f"describe it in `alt`: {cell['source']}"
        )
