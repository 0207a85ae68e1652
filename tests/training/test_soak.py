"""`NUPI_SOAK_STEPS=1000000 pytest tests/training/test_soak.py -s` is the full length, in about half an hour."""

import math
import os
import sys

import pytest
from training.soak import soak

STEPS = int(os.environ.get("NUPI_SOAK_STEPS", "6000"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory in use from /proc")
@pytest.mark.timeout(0)
def test_multipliers_stay_those_of_a_plain_loop_and_memory_stays_flat():
    report = soak(STEPS)
    settled, *_, last = report.memory[len(report.memory) // 4 :]
    print(
        f"{report.steps:,} steps of {report.problems} problems, {report.refused:,} inputs refused, "
        f"{report.checkpoints:,} checkpoints; largest multiplier {report.largest:.3g}, difference "
        f"to the plain loop {report.worst:.2g}; memory {settled / 2**20:.1f} MiB, later {last / 2**20:.1f}"
    )
    assert report.steps == STEPS
    assert report.refused > STEPS // 100
    assert report.checkpoints > STEPS // 1000
    assert math.isfinite(report.largest)
    assert report.largest > 0
    assert report.worst < 1e-9
    assert last - settled < 8 * 2**20
