"""The table of docs/gates.md is that of results/pruning."""

import csv
from pathlib import Path

from benchmarks.gates_report import markdown, table

ROOT = Path(__file__).parents[2]


def test_the_guide_has_the_numbers_of_the_results():
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    lines = markdown(table())
    assert len(lines) > 2
    assert all(line in guide for line in lines)


def test_every_method_kept_to_the_flops_it_was_given():
    assert all(line["flops"] <= line["asked"] + 0.005 for line in table())
    assert all(line["seeds"] == 3 for line in table())


def test_the_reasons_for_our_own_surgery_are_those_that_were_measured():
    with (ROOT / "results" / "pruning" / "surgery.csv").open(newline="") as file:
        found = {(row["network"], row["what"]): row["outcome"] for row in csv.DictReader(file)}
    assert sum(what == "channels" for _, what in found) == 11
    refused = {("gpt2", "units"), ("gpt2", "heads"), ("llama", "heads")}
    assert {each for each, outcome in found.items() if outcome != "equal"} == refused
    assert all("Conv1D" in found["gpt2", what] for what in ("units", "heads"))
    assert found["llama", "heads"] == "not back after 45 s"
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    for line in (
        "| eleven small CNNs and MLPs | equal to rounding |",
        "| BERT, DistilBERT, ViT | equal to rounding | equal to rounding |",
        "| GPT-2 | `ValueError`: its `Conv1D` is not in the graph | the same |",
        "| Llama | equal to rounding | not back after 45 s for key-value groups |",
    ):
        assert line in guide
