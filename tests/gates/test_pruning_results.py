"""The table of docs/gates.md is that of results/pruning."""

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
