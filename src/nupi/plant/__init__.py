"""Training seen from a multiplier: how far a violation moves, per primal step, if the multiplier changes by one."""

from nupi.plant.optimizers import Scaling, scalings
from nupi.plant.response import Plant, measure

__all__ = ["Plant", "Scaling", "measure", "scalings"]
