"""Kinds of violations: a tensor, `Indexed`, `Averaged`, `Measured`, and what a user writes.

A kind is a subclass of `Violation`. It owns all that depends on how a violation is given: its
check, its term in the Lagrangian, the error it gives a multiplier, and how what several processes saw is joined.
"""

from nupi.violations.averaged import Averaged
from nupi.violations.base import Dense, Indexed, Target, as_violation
from nupi.violations.kind import Move, Parts, Violation
from nupi.violations.measured import Measured

__all__ = ["Averaged", "Dense", "Indexed", "Measured", "Move", "Parts", "Target", "Violation", "as_violation"]
