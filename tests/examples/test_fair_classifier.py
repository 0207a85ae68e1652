import re
import subprocess
import sys
from pathlib import Path

import pytest

from nupi.paper.data import adult
from nupi.paper.data.fetch import DataUnavailableError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fair_classifier.py"


def test_the_constraint_closes_the_gap_on_unseen_rows():
    try:
        adult.load()
    except DataUnavailableError as error:
        pytest.skip(f"needs the Adult data, and {error}")
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "--epochs", "10"], capture_output=True, text=True, check=True
    )
    lines = ran.stdout.strip().splitlines()[-2:]
    numbers = [[float(x) / 100 for x in re.findall(r"([+-]?[\d.]+)%", line)] for line in lines]
    (usual, usual_gap), (fair, fair_gap) = numbers
    assert usual > 0.84
    assert abs(usual_gap) > 0.15
    assert fair > 0.81
    assert abs(fair_gap) < 0.05


def test_the_example_stays_short():
    assert len(EXAMPLE.read_text().splitlines()) < 120
