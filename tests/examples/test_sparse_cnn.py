import re
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "sparse_cnn.py"


def test_a_short_run_ends_within_a_point_below_its_budget_and_loses_nothing_by_the_harvest(
    monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "6"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    with_gates, harvested = map(float, re.findall(r"([\d.]+)% (?:with gates|harvested)", said))
    assert with_gates == harvested
    assert float(re.search(r"([\d.]+)% when trained on", said)[1]) > 90
    before, after = (
        int(number.replace(",", "")) for number in re.search(r"parameters +([\d,]+) +([\d,]+)", said).groups()
    )
    assert before == 94_186
    assert 29 < 100 * after / before <= 30
    assert 29 < float(re.search(r"exported program has ([\d.]+)% of the parameters", said)[1]) <= 30
