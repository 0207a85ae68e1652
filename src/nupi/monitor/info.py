"""Describe the run, for the head of a record."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nupi.lagrangian import Lagrangian


def what_runs(lagrangian: Lagrangian, dual: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Versions, kind of machine, the problem, the optimizer and the start time, as plain data."""
    from nupi import __version__

    first = next(iter(lagrangian.parameters()))
    return {
        "nupi": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": str(first.device),
        "constraints": len(lagrangian.constraints),
        "multipliers": sum(p.numel() for p in lagrangian.parameters()),
        "reduce": lagrangian.reduce,
        "dual": type(dual).__name__ if dual is not None else None,
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
