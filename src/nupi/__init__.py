"""Train PyTorch models under constraints, with Lagrange multipliers that converge instead of oscillating."""

from __future__ import annotations as _annotations

import importlib as _importlib
import typing as _typing

from nupi.ascent import NonFiniteMultiplierError, NonFiniteViolationError
from nupi.constraints import Band, Equality, Inequality
from nupi.lagrangian import Lagrangian
from nupi.optim import PID, NuPI, SelfTuned, UnifiedMomentum, as_nupi
from nupi.violations import Averaged, Indexed, Measured

if _typing.TYPE_CHECKING:
    from nupi import distributed, gates, monitor, rates, theory, tune
    from nupi.implicit import Featured, Implicit
    from nupi.loop.best import Best
    from nupi.loop.coefficient import Coefficient
    from nupi.loop.extragradient import extrapolated, optimistic
    from nupi.loop.penalties import PenaltySchedule
    from nupi.monitor.finding import ConstraintWarning, Finding
    from nupi.monitor.monitor import Monitor
    from nupi.solve.minimize import minimize
    from nupi.solve.solution import Solution, Status
    from nupi.solve.sweep import sweep

__version__ = "0.2.0"

__all__ = [
    "PID",
    "Averaged",
    "Band",
    "Best",
    "Coefficient",
    "ConstraintWarning",
    "Equality",
    "Featured",
    "Finding",
    "Implicit",
    "Indexed",
    "Inequality",
    "Lagrangian",
    "Measured",
    "Monitor",
    "NonFiniteMultiplierError",
    "NonFiniteViolationError",
    "NuPI",
    "PenaltySchedule",
    "SelfTuned",
    "Solution",
    "Status",
    "UnifiedMomentum",
    "as_nupi",
    "distributed",
    "extrapolated",
    "gates",
    "minimize",
    "monitor",
    "optimistic",
    "rates",
    "sweep",
    "theory",
    "tune",
]

# The solver and the other parts are loaded on first use: a training loop does not need them.
_PARTS = ("distributed", "gates", "monitor", "rates", "theory", "tune")
_LATE = {
    "Best": "nupi.loop.best",
    "Coefficient": "nupi.loop.coefficient",
    "ConstraintWarning": "nupi.monitor.finding",
    "Featured": "nupi.implicit",
    "Finding": "nupi.monitor.finding",
    "Implicit": "nupi.implicit",
    "Monitor": "nupi.monitor.monitor",
    "PenaltySchedule": "nupi.loop.penalties",
    "Solution": "nupi.solve.solution",
    "Status": "nupi.solve.solution",
    "extrapolated": "nupi.loop.extragradient",
    "minimize": "nupi.solve.minimize",
    "optimistic": "nupi.loop.extragradient",
    "sweep": "nupi.solve.sweep",
}


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return _importlib.import_module(f"nupi.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'nupi' has no attribute {name!r}")
    value = getattr(_importlib.import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
