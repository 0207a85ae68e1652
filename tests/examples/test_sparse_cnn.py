import re
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "sparse_cnn.py"


def test_a_short_run_closes_channels_and_loses_nothing_by_taking_them_out(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "6"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    with_gates, harvested = map(float, re.findall(r"([\d.]+)% (?:with gates|harvested)", said))
    assert with_gates == harvested
    assert with_gates > 90
    assert float(re.search(r"expected density ([\d.]+)", said)[1]) < 0.7
    before, after = (
        int(number.replace(",", "")) for number in re.search(r"parameters +(\S+) +(\S+)", said).groups()
    )
    assert before == 94_186
    assert after < 0.6 * before
