"""Run the tests, with or without a fault, in a forked process.

It is forked from a process that has imported torch and pytest, but not nupi, which saves most of the time of a run.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
import pytest
import torch  # noqa: F401 - imported before the fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tools.mutants.faults import Fault

HOOK = Path(__file__).parent / "hook"
_PLAIN = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:pytest_cov",
    "-k",
    "not compiles",
    "-m",
    "not nightly",
]
_FASTEST = 60
_FAILED, _TIMED_OUT, _NO_TESTS = 1, 124, 5


@dataclass
class Baseline:
    """The result of the tests without a fault."""

    seconds: dict[str, float] = field(default_factory=dict)  # by test
    # By file and line, the tests that run it.
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def tests_for(self, fault: Fault) -> list[str]:
        """The tests that run the faulty lines, fastest first; all if they run only when the file is imported."""
        by_line = self.lines.get(fault.path, {})
        tests = set().union(*(by_line.get(line, set()) for line in fault.lines))
        chosen = (tests - {""}) or (self.seconds.keys() if "" in tests else set())
        return sorted(chosen, key=lambda test: self.seconds.get(test, 0.0))

    def first_of(self, tests: Sequence[str]) -> list[str]:
        """The tests of the file that has most of the fastest tests: pytest collects one file sooner than all."""
        files = Counter(test.partition("::")[0] for test in tests[:_FASTEST])
        return [test for test in tests if files and test.partition("::")[0] == files.most_common(1)[0][0]]


class _Watch:
    """Records how long each test takes and, with `cover`, which lines it runs."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover, self.seconds = cover, defaultdict[str, float](float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.cover.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


class _Only:
    """Runs these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._place = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._place]
        items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])


def measure(tests: Sequence[str], sources: Iterable[str], root: Path) -> Baseline:
    """Run the tests without a fault; they must pass."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)

        def run() -> int:
            files = [str(root / source) for source in sources]
            cover = coverage.Coverage(data_file=str(notes / "lines"), include=files, config_file=False)
            watch = _Watch(cover)
            cover.start()
            code = int(pytest.main([*_PLAIN, *tests], plugins=[watch]))
            cover.stop()
            cover.save()
            (notes / "seconds").write_text(json.dumps(watch.seconds))
            return code

        code, output = _forked(run, timeout=3600)
        if code != 0:
            sys.exit(
                f"the tests fail without any fault, or take over an hour (exit {code}):\n{output[-4000:]}"
            )
        data = coverage.CoverageData(str(notes / "lines"))
        data.read()
        lines = {
            Path(file).relative_to(root).as_posix(): {
                line: set(contexts) for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return Baseline(json.loads((notes / "seconds").read_text()), lines)


def survives(fault: Fault, root: Path, tests: Sequence[str], files: Sequence[str], timeout: float) -> bool:
    """Whether these tests pass with the fault in place.

    Args:
        fault: the fault.
        root: the folder of the project.
        tests: the tests to run, by their pytest ids; empty for all tests of `files`.
        files: the files that they are in.
        timeout: seconds after which the fault counts as found.
    """
    module = fault.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "fault.json"
        note.write_text(json.dumps({"module": module, "path": str(root / fault.path), "text": fault.text}))

        def run() -> int:
            os.environ["NUPI_FAULT"] = str(note)
            os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])
            runpy.run_path(str(HOOK / "sitecustomize.py"))
            return int(pytest.main([*_PLAIN, "-x", *files], plugins=[_Only(tests)] if tests else []))

        code, _ = _forked(run, timeout)
    return code in (0, _NO_TESTS)


def _forked(run: Callable[[], int], timeout: float) -> tuple[int, str]:
    """What `run` returned in a forked process, and what it printed; processes that it started end with it."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = _FAILED
            try:
                code = run()
            except BaseException:  # noqa: BLE001 - shown here: nothing of the parent may run on in the child
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        try:
            code = _waited(child, timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # the child and its own children
        if code == _TIMED_OUT:
            os.waitpid(child, 0)
        output.seek(0)
        return code, output.read()


def _waited(child: int, timeout: float) -> int:
    """The exit code of a process; that of a time-out if it is not done by then."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return _TIMED_OUT
