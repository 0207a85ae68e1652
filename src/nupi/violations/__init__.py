"""Kinds of violations: a tensor, `Indexed`, `Averaged`, `Measured`, and what a user writes.

A kind is a subclass of `Violation`. It owns all that depends on how a violation is given: its
check, its term in the Lagrangian, the error it gives a multiplier, and how what several processes saw is joined.

| file          | what it has                                                                   |
| ------------- | ----------------------------------------------------------------------------- |
| `kind.py`     | the base class, and what its methods return                                   |
| `dense.py`    | a tensor for the whole group                                                  |
| `indexed.py`  | values of some constraints of the group                                       |
| `averaged.py` | means, as sums and counts                                                     |
| `measured.py` | one measure for the model and another one for the multipliers                 |
| `target.py`   | the group that a violation belongs to, and what a step on it may write to     |
| `values.py`   | checks of values, and the types in which they are added                       |
| `plain.py`    | the fast path for the terms of plain tensors                                  |
"""

from nupi.violations.averaged import Averaged
from nupi.violations.dense import Dense, as_violation
from nupi.violations.indexed import Indexed
from nupi.violations.kind import Move, Parts, Violation
from nupi.violations.measured import Measured
from nupi.violations.target import Target

__all__ = ["Averaged", "Dense", "Indexed", "Measured", "Move", "Parts", "Target", "Violation", "as_violation"]
