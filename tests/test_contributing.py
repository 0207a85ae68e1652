"""The code in CONTRIBUTING.md works as it stands there."""

import io
import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

import nupi
from nupi.paper import runner

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def written_under(heading):
    """What the code under a heading defines."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(code) == 1
    names = {"__name__": f"contributing_{heading.replace(' ', '_')}"}
    exec(code[0], names)
    return names


def test_its_paths_and_commands_exist():
    named = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./-]*)`", PAGE)
    named += re.findall(r"\]\(([\w./-]+)\)", PAGE)
    assert len(named) > 8
    assert not [path for path in named if not (ROOT / path).exists()]
    targets = set(
        re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(re.findall(r"`make ([a-z]+)", PAGE)) <= targets


def test_a_dual_optimizer_in_a_loop_and_in_a_sweep():
    TwoPoint = written_under("Add a dual optimizer")["TwoPoint"]
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2), "b": nupi.Inequality(2)})
    dual = TwoPoint(lagrangian.parameters(), lr=0.5)
    for a, b in ((1.0, -1.0), (3.0, 2.0)):
        lagrangian.ascend(dual, {"a": torch.full((2,), a), "b": torch.full((2,), b)})
    assert lagrangian.multipliers["a"].tolist() == [0.5 + 0.25 * (1 + 3)] * 2
    assert (
        lagrangian.multipliers["b"].tolist() == [0.25 * (-1 + 2)] * 2
    )  # from the bound, to which it was projected

    def objective(x):
        return x.square().sum()

    def inequality(x):
        return 1 - x.sum()

    start = torch.zeros(2, dtype=torch.float64)
    swept = nupi.sweep(
        objective, start, inequality=inequality, dual=TwoPoint, grid={"lr": [0.01, 0.02]}, steps=50
    )
    alone = nupi.minimize(
        objective, start, inequality=inequality, dual=lambda params: TwoPoint(params, lr=0.02), steps=50
    )
    torch.testing.assert_close(swept.at(lr=0.02).x, alone.x, rtol=1e-10, atol=1e-12)


def test_a_constraint():
    AtLeast = written_under("Add a kind of constraint")["AtLeast"]
    lagrangian = nupi.Lagrangian({"recall": AtLeast(3, level=0.9)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    recall = torch.tensor([0.5, 0.9, 1.0], requires_grad=True)
    lagrangian.ascend(dual, {"recall": recall})
    assert lagrangian.multipliers["recall"].tolist() == pytest.approx([0.4, 0.0, 0.0])
    lagrangian(torch.zeros(()), {"recall": recall}).backward()
    assert recall.grad.tolist() == pytest.approx(
        [-0.4, 0.0, 0.0]
    )  # descent raises the recall that is too low
    assert "recall: AtLeast(3, level=0.9)" in repr(lagrangian)
    with pytest.raises(RuntimeError, match="a lower limit"):
        nupi.Lagrangian({"recall": nupi.Inequality(3)}).load_state_dict(lagrangian.state_dict())


def test_a_violation():
    Worst = written_under("Add a kind of violation")["Worst"]
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    samples = torch.tensor([[1.0, 4.0], [3.0, 2.0]], requires_grad=True)
    lagrangian.ascend(dual, {"c": Worst(samples)})
    assert lagrangian.multipliers["c"].tolist() == [3.0, 4.0]
    lagrangian(torch.zeros(()), {"c": Worst(samples)}).backward()
    assert samples.grad.tolist() == [[0.0, 4.0], [3.0, 0.0]]


def test_a_target(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_registry", {})
    written_under("Add a target to the reproduction")
    chosen = runner._registry["two-variables"]
    claims = runner.reproduce(chosen, "smoke", tmp_path, Console(file=io.StringIO()))
    assert [claim.holds for claim in claims] == [True]
    summary = json.loads((tmp_path / "two-variables" / "summary.json").read_text(encoding="utf-8"))
    assert summary["scale"] == "smoke"
