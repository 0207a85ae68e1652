"""The milliseconds that `import nupi` adds to `import torch`, each time in a new process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Row, at_most

CODE = """
import torch
from time import perf_counter
start = perf_counter()
import nupi
print(perf_counter() - start)
"""


def run() -> list[Row]:
    times = [
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout)
        for _ in range(7)
    ]
    return [at_most("milliseconds", min(times) * 1e3, 60.0)]
