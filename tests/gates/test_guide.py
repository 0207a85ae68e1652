"""The snippet of docs/gates.md, run as it stands."""

import re
from pathlib import Path

import torch

from nupi import gates

GUIDE = Path(__file__).parents[2] / "docs" / "gates.md"


def snippets():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_snippet_runs_and_sparsifies(capsys):
    names = {}
    exec(snippets()[0], names)
    assert 0.35 < names["budget"].realised().item() <= 0.5
    assert "CPU milliseconds" in capsys.readouterr().out
    others = torch.randn(5, *names["images"].shape[1:])  # another batch size
    expected = names["model"].eval()(others)
    torch.testing.assert_close(names["program"].module()(others), expected, rtol=1e-4, atol=1e-5)


def test_the_snippet_for_transformers_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens = torch.randint(0, 99, (2, 5))
    names = {"gates": gates, "tokens": tokens, "torch": torch}
    exec(snippets()[1], names)
    torch.testing.assert_close(names["again"].eval()(tokens).logits, names["small"](tokens).logits)
    torch.testing.assert_close(names["program"].module()(tokens).logits, names["small"](tokens).logits)
