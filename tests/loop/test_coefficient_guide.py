"""The snippets of docs/integrations/coefficient.md, run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "integrations" / "coefficient.md"


def test_the_snippets_run_and_the_bound_is_met():
    first, second = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    # |x|^2 = 2 at the solution, where every x_i = 3 / (1 + beta) is the root of 1/2.
    assert names["size"].item() == pytest.approx(2.0, abs=0.02)
    assert names["beta"].item() == pytest.approx(3 * 2**0.5 - 1, rel=0.02)
    exec(second, names)
