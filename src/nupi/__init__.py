"""Train PyTorch models under constraints, with Lagrange multipliers that converge instead of oscillating."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nupi.constraints import Averaged, Equality, Indexed, Inequality
from nupi.guard import NonFiniteViolationError
from nupi.lagrangian import Lagrangian
from nupi.optim import PID, NuPI, UnifiedMomentum, as_nupi

if TYPE_CHECKING:
    from nupi import distributed, gates, rates, theory, tune
    from nupi.best import Best
    from nupi.solve.minimize import minimize
    from nupi.solve.solution import Solution, Status
    from nupi.solve.sweep import sweep

__version__ = "0.1.0"

__all__ = [
    "PID",
    "Averaged",
    "Best",
    "Equality",
    "Indexed",
    "Inequality",
    "Lagrangian",
    "NonFiniteViolationError",
    "NuPI",
    "Solution",
    "Status",
    "UnifiedMomentum",
    "as_nupi",
    "distributed",
    "gates",
    "minimize",
    "rates",
    "sweep",
    "theory",
    "tune",
]

# The solver and the other parts are loaded when first asked for: a training loop does not need them.
_PARTS = ("distributed", "gates", "rates", "theory", "tune")
_LATE = {
    "Best": "nupi.best",
    "Solution": "nupi.solve.solution",
    "Status": "nupi.solve.solution",
    "minimize": "nupi.solve.minimize",
    "sweep": "nupi.solve.sweep",
}


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"nupi.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'nupi' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
