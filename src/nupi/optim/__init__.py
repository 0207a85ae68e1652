"""Dual optimizers: controllers for Lagrange multipliers, as torch optimizers."""

from nupi.optim.base import DualOptimizer
from nupi.optim.momentum import UnifiedMomentum, as_nupi
from nupi.optim.nupi import NuPI
from nupi.optim.pid import PID
from nupi.optim.self_tuned import SelfTuned

__all__ = ["PID", "DualOptimizer", "NuPI", "SelfTuned", "UnifiedMomentum", "as_nupi"]
