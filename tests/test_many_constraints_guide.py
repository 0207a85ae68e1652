"""The snippet of docs/many_constraints.md, run as it stands."""

import re
from pathlib import Path

import torch

GUIDE = Path(__file__).parents[1] / "docs" / "many_constraints.md"


def test_the_snippet_finds_the_multipliers():
    (snippet,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)
    found = names["lagrangian"].multipliers["each"]
    torch.testing.assert_close(found, torch.tensor([0.5, 1.0, 2.0]), rtol=0, atol=0.01)
