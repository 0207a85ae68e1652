"""The notebooks of the site run from top to bottom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
FRESH = "%reset -f\n%cd -q {}"  # no name of another notebook is left


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One process for all notebooks: to start it and to import torch takes longer than most of them."""
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:(jupyter_client|zmq|tornado|asyncio|nbformat|traitlets).*"
)
def test_a_notebook_runs(path: Path, tmp_path: Path, kernel: Any) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FRESH.format(tmp_path)))
    client = nbclient.NotebookClient(notebook, timeout=120, km=kernel)
    client.execute()
    client.kc.stop_channels()
    assert any(cell.get("outputs") for cell in notebook.cells[1:])
