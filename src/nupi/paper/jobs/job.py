"""The file that a job's result is kept in: written whole by the process that computed it, and checked when read."""

from __future__ import annotations

import json
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Settings: TypeAlias = "Mapping[str, Any]"
Function: TypeAlias = "Callable[..., Any]"


@dataclass(frozen=True)
class Outcome:
    """What became of one job: its value, or else why there is none."""

    settings: dict[str, Any]
    value: Any = None
    failure: str | None = None
    cached: bool = False


@dataclass(frozen=True)
class Job:
    """A call of a function, and where its result is kept.

    Args:
        function: defined at the top of a module, so that another process can import it.
        settings: the keyword arguments, in JSON's types.
        folder: of the results.
        version: part of the result's name; another one when the function computes something else.
        shared: further keyword arguments that have no part in the name, such as where an input lies.
    """

    function: Function
    settings: dict[str, Any]
    folder: Path
    version: str = "1"
    shared: Settings | None = None

    @property
    def key(self) -> str:
        """What the result is the result of, exactly."""
        exact = [self.function.__module__, self.function.__qualname__, self.version, self.settings]
        return json.dumps(exact, sort_keys=True, allow_nan=False)

    @property
    def path(self) -> Path:
        """The file of its result: readable in front, exact behind."""
        readable = "-".join(
            f"{key}{value}" for key, value in self.settings.items() if isinstance(value, int | float | str)
        )
        clean = "".join(c if c.isalnum() or c in "-._" else "_" for c in readable)[:80]
        return self.folder / f"{self.function.__name__}-{clean}-{files.digest(self.key)[:16]}.pt"

    @property
    def progress(self) -> Path:
        """Where a long job may keep how far it is; it goes once the result is there."""
        return self.path.with_suffix(".progress")

    def kept(self) -> Outcome | None:
        """Its result if it was kept before; what is damaged is computed again."""
        if (found := files.recall(self.path)) is None:
            return None
        if found.key != self.key:
            warnings.warn(
                f"{self.path} is another job's result; it is computed again", RuntimeWarning, stacklevel=2
            )
            return None
        return Outcome(self.settings, found.value, cached=True)

    def attempt(self) -> str | None:
        """Do the job, on one thread whatever the machine, and keep its result; the traceback if it fails."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            files.keep(self.path, self.key, self.function(**self.settings, **(self.shared or {})))
            self.progress.unlink(missing_ok=True)
        except Exception:  # noqa: BLE001 - whatever went wrong is one job's, and is reported as such
            return traceback.format_exc()
        finally:
            torch.set_num_threads(threads)
        return None

    def outcome(self, failure: str | None) -> Outcome:
        """What became of it, once it is over: its failure, or what its file holds."""
        if failure is not None:
            return Outcome(self.settings, failure=failure)
        if (found := self.kept()) is None:
            return Outcome(
                self.settings, failure=f"its result {self.path} was written but cannot be read back"
            )
        return Outcome(self.settings, found.value)
