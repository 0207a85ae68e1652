"""nuPI comes to the exact weights; gradient ascent with the same step size is still on its way."""

import re
import sys

from examples import constrained_regression


def test_nupi_is_at_the_exact_weights(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["constrained_regression.py", "--out", str(tmp_path)])
    constrained_regression.main()
    rows = re.findall(r"(gradient ascent|nuPI) \(.*?\) +(\S+) +(\S+) +(\S+)", capsys.readouterr().out)
    (_, *slow), (_, *fast) = rows
    off, least, distance = map(float, fast)
    assert off < 1e-6
    assert least > -1e-6
    assert distance < 1e-5
    assert float(slow[2]) > 100 * distance
    assert (tmp_path / "constrained_regression.png").stat().st_size > 10_000
