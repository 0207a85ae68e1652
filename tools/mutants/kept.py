"""Results of earlier runs of `make mutants`, so that a run that was stopped can continue.

They are stored by a fingerprint of the core and its tests: after a change of either, a run starts again.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from tools.mutants.running import Baseline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tools.mutants.faults import Fault


class Kept:
    """The baseline and the verdicts of one state of the code.

    Args:
        folder: the folder for the results.
        files: the files on which the results depend.
    """

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        code = hashlib.sha256()
        for file in sorted(files):
            code.update(file.as_posix().encode() + file.read_bytes())
        folder.mkdir(parents=True, exist_ok=True)
        self._baseline = folder / f"{code.hexdigest()[:16]}.baseline.json"
        self._verdicts = folder / f"{code.hexdigest()[:16]}.verdicts.jsonl"
        self._found = self._read()

    def baseline(self) -> Baseline | None:
        """The result of the tests without a fault, if it was measured."""
        if not self._baseline.exists():
            return None
        plain = json.loads(self._baseline.read_text(encoding="utf-8"))
        lines = {
            path: {int(line): set(tests) for line, tests in by_line.items()}
            for path, by_line in plain["lines"].items()
        }
        return Baseline(plain["seconds"], lines)

    def keep_baseline(self, baseline: Baseline) -> None:
        """Keep it for the next run."""
        lines = {
            path: {line: sorted(tests) for line, tests in by_line.items()}
            for path, by_line in baseline.lines.items()
        }
        text = json.dumps({"seconds": baseline.seconds, "lines": lines})
        self._baseline.write_text(text, encoding="utf-8")

    def verdict(self, fault: Fault) -> bool | None:
        """Whether the fault was found, if it was tried."""
        return self._found.get(fault.name)

    def keep_verdict(self, fault: Fault, *, found: bool) -> None:
        """Keep it for the next run."""
        with self._verdicts.open("a", encoding="utf-8") as file:
            file.write(json.dumps([fault.name, found]) + "\n")

    def _read(self) -> dict[str, bool]:
        if not self._verdicts.exists():
            return {}
        lines = self._verdicts.read_text(encoding="utf-8").splitlines()
        # The last line may have been cut off.
        return dict(json.loads(line) for line in lines if line.endswith("]"))
