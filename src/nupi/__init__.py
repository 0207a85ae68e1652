"""Train PyTorch models under constraints, with Lagrange multipliers that converge instead of oscillating."""

from nupi.constraints import Equality, Indexed, Inequality
from nupi.guard import NonFiniteViolationError
from nupi.lagrangian import Lagrangian
from nupi.optim import PID, NuPI, UnifiedMomentum, as_nupi

__version__ = "0.1.0"

__all__ = [
    "PID",
    "Equality",
    "Indexed",
    "Inequality",
    "Lagrangian",
    "NonFiniteViolationError",
    "NuPI",
    "UnifiedMomentum",
    "as_nupi",
]
