"""The snippets of docs/extragradient.md, run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "extragradient.md"


def test_the_snippets_reach_the_solution():
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(snippet, names)
        assert names["x"].item() == pytest.approx(2.0, abs=1e-4)
