"""What the pages of the front ends show first is a program that works."""

import re
from pathlib import Path

import pytest
from examples import huggingface_trainer as example

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is shorter than the model's optimizer can follow"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]
PAGES = Path(__file__).parents[2] / "docs" / "integrations"


def run_first_block(page, given, monkeypatch, folder):
    monkeypatch.chdir(folder)  # loggers write where they are
    text = (PAGES / page).read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    names = {"__name__": "page", **given}
    exec(compile(block.group(1), page, "exec"), names)
    return names


def test_transformers(tmp_path, monkeypatch):
    other = example.make_trainer(tmp_path, steps=3)
    given = {"model": example.tiny_model(), "args": other.args, "data": other.train_dataset}
    names = run_first_block("transformers.md", given, monkeypatch, tmp_path)
    assert names["trainer"].lagrangian.multipliers["rate"].item() > 0


def test_lightning(tmp_path, monkeypatch):
    names = run_first_block("lightning.md", {}, monkeypatch, tmp_path)
    assert names["classifier"].lagrangian.multipliers["rate"].item() > 0
    assert abs(names["classifier"].model(names["x"]).sigmoid().mean().item() - 0.3) < 0.03
