"""The snippets of docs/penalties.md, run as they stand."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "penalties.md"


def test_the_snippets_end_where_the_page_says():
    first, second, third = re.findall(
        r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    names: dict[str, object] = {}
    exec(first, names)
    assert names["x"].tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    multipliers = names["lagrangian"].multipliers
    assert multipliers["h"].item() == pytest.approx(-3.0, abs=1e-3)
    assert multipliers["g"].item() == pytest.approx(4.0, abs=1e-3)
    exec(second, names)
    assert names["x"].item() == pytest.approx(1.0, abs=1e-4)
    assert names["lagrangian"].penalties == pytest.approx({"h": 10.0})
    exec(third, names)
    assert names["x"].item() == pytest.approx(7 / 6, abs=1e-4)
