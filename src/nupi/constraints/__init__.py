"""Kinds of constraints. Each has its bounds, its projection, its term in the Lagrangian and its check of a checkpoint.

A kind defines three things: the shape of its multipliers, the errors that a violation gives to them, and their bounds.
Everything else follows from these three. A new kind is a subclass of `Constraint`.

| file            | what it has                                                       |
| --------------- | ----------------------------------------------------------------- |
| `constraint.py` | the base class, and the checks of its size and its start          |
| `kinds.py`      | equalities, inequalities and bands                                |
| `bounds.py`     | the interval in which multipliers must be, and the projection     |
| `checks.py`     | checks of the constraints and of the penalties of a Lagrangian    |
"""

# Pickles of older versions name these classes by this module, which had them all: they must stay importable from here.
from nupi.constraints.bounds import Bounds
from nupi.constraints.constraint import Constraint
from nupi.constraints.kinds import Band, Equality, Inequality

__all__ = ["Band", "Bounds", "Constraint", "Equality", "Inequality"]
