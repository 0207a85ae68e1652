"""The snippet of docs/gates.md, run as it stands."""

import re
from pathlib import Path

import torch
from gates.networks import convolution
from torch import nn

from nupi import gates

GUIDE = Path(__file__).parents[2] / "docs" / "gates.md"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1, self.conv2 = convolution(4, 8), nn.BatchNorm2d(8), convolution(8, 4)

    def forward(self, x):
        return x + self.conv2(self.norm1(self.conv1(x)).relu())


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layer1, self.layer2 = convolution(3, 4), Residual(), Residual()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def snippets():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_snippet_runs_and_sparsifies(capsys):
    torch.manual_seed(0)
    images = torch.randn(16, 3, 6, 6)
    labels = (images.mean((1, 2, 3)) > 0).long()
    names = {"model": Small(), "images": images, "loader": [(images, labels)] * 400}
    exec(snippets()[0], names)
    assert 0.35 < names["budget"].realised().item() <= 0.5
    assert "CPU milliseconds" in capsys.readouterr().out
    others = torch.randn(5, 3, 6, 6)  # another batch size
    expected = names["model"].eval()(others)
    torch.testing.assert_close(names["program"].module()(others), expected, rtol=1e-4, atol=1e-5)


def test_the_snippet_for_transformers_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens = torch.randint(0, 99, (2, 5))
    names = {"gates": gates, "tokens": tokens}
    exec(snippets()[1], names)
    torch.testing.assert_close(names["again"].eval()(tokens).logits, names["small"](tokens).logits)
