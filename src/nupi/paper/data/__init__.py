"""The data sets of the paper, each got once, checked and kept; the data is never part of this package.

A data set is a module here with `prepare(path)`, which makes it ready for use offline and says what it holds.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DATASETS = {
    "adult": "nupi.paper.data.adult",
    "cifar10": "nupi.paper.data.cifar10",
    "compas": "nupi.paper.data.compas",
    "crime": "nupi.paper.data.crime",
}
"""Name to module."""


def prepare(name: str, path: Path | None = None) -> str:
    """Make the data set `name` ready for use offline, and say in one line what it holds.

    Args:
        name: one of `DATASETS`.
        path: a folder of your own that holds the files; it then comes before every other source.

    Raises:
        ValueError: `name` is not a data set.
        nupi.paper.data.fetch.DataUnavailableError: no source could give it.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"name={name!r} is not a data set: choose one of {', '.join(DATASETS)}{hint}")
    module = importlib.import_module(DATASETS[name])
    summary: str = module.prepare(path)
    return summary
