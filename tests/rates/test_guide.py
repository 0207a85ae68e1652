"""The guide's code runs from top to bottom, and what it says came out does."""

import re
from pathlib import Path

import torch

GUIDE = Path(__file__).parents[2] / "docs" / "rates.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


def test_every_block_runs_and_the_first_closes_the_gap(capsys):
    code = blocks()
    assert len(code) == 5
    space = {}
    exec(code[0], space)
    low, high = sorted(space["rate"].tolist())
    assert high - low < 0.025
    for block in code[1:]:
        exec(block, space)
    assert "of 1 feasible" in capsys.readouterr().out


def test_without_the_constraint_the_rates_are_20_points_apart():
    space = {}
    exec(blocks()[0].replace("lagrangian(loss, violations).backward()", "loss.backward()"), space)
    low, high = sorted(space["rate"].tolist())
    assert abs(high - low - 0.20) < 0.01


def test_the_cost_of_a_promise_about_two_groups():
    from nupi import rates

    groups = torch.arange(400) % 2
    logits = torch.where(torch.arange(400) < 100, 1.0, -1.0)
    sure = (rates.positive_rate(groups=2).gap() <= 0.0).confident(0.95).measure([(logits, None, groups)])
    assert abs((sure.sums / sure.counts).max().item() - 0.15) < 0.01
