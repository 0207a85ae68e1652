"""Train PyTorch models under constraints, with Lagrange multipliers that converge instead of oscillating."""

from nupi.constraints import Equality, Indexed, Inequality
from nupi.guard import NonFiniteViolationError
from nupi.lagrangian import Lagrangian
from nupi.optim import PID, NuPI, UnifiedMomentum, as_nupi
from nupi.solve.minimize import minimize
from nupi.solve.solution import Solution, Status
from nupi.solve.sweep import sweep

__version__ = "0.1.0"

__all__ = [
    "PID",
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
    "minimize",
    "sweep",
]
