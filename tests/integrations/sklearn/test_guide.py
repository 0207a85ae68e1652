"""The guide's code runs from top to bottom."""

import re
import warnings
from pathlib import Path

import sklearn

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "integrations" / "sklearn.md").read_text(encoding="utf-8")


def test_every_block_runs_and_the_first_meets_its_bounds():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(blocks) == 5
    for i, last in ((0, '"false_positive_rate": 0.05}'), (3, "random_state=0")):
        assert last in blocks[i]
        blocks[i] = blocks[i].replace(last, f"{last}, max_steps=100, learning_rate=0.1")  # to be quick
    space = {}
    exec(blocks[0], space)
    assert space["model"].feasible_
    assert space["model"].score(space["X"], space["y"]) > 0.8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)  # the search's runs are short
        for block in blocks[1:]:
            exec(block, space)
    assert space["model"].feasible_
