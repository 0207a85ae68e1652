"""The snippets of docs/solver.md, run as they stand."""

import re
from pathlib import Path

import pytest
import torch

import nupi

GUIDE = Path(__file__).parents[2] / "docs" / "solver.md"


def test_the_snippets_run_and_say_what_the_page_says(capsys):
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(snippets) == 3
    names: dict[str, object] = {}
    exec(snippets[0], names)
    one = names["found"]
    assert one.status == nupi.Status.CONVERGED
    assert one.multipliers["reach"].item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(one.x, torch.full((2,), 0.5, dtype=torch.float64), rtol=0, atol=1e-6)
    exec(snippets[1], names)
    assert names["found"].at(kp=1.0).residuals.worst.shape == (20,)
    assert "Solution of a sweep over ki (20), kp (3)" in capsys.readouterr().out
    exec(snippets[2], names)  # guarded, as a program that starts processes has to be
