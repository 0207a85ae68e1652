import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "recall_on_new_rows.py"


def test_the_promised_recall_holds_on_new_rows():
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    feasible = int(re.search(r"Best\((\d+) of 100 feasible", ran.stdout)[1])
    recall, alarms = (float(x) / 100 for x in re.findall(r"([\d.]+)%", ran.stdout))
    assert feasible > 0
    assert recall >= 0.9
    assert alarms < 0.4
