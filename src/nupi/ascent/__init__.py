"""One step of a dual optimizer over the multipliers of some constraints: it is taken as a whole, or not at all.

| file                  | what it has                                                                        |
| --------------------- | ---------------------------------------------------------------------------------- |
| `step.py`             | the step: checked, taken, projected, and undone if anything raises                 |
| `snapshot.py`         | copies of what a step may change, to undo it on the host or on a device            |
| `finite.py`           | violations and multipliers that are not finite: the errors, the reports of a device |
| `listening.py`        | listeners: what they get after a step, and what they add to an error               |
| `repeat.py`           | the fast path for a step like the last one                                         |
| `many_groups.py`      | the fast path for many small groups, joined to one vector                          |
| `other_optimizers.py` | gradients in the layout that torch's own optimizers take                           |
"""

from nupi.ascent.finite import NonFiniteMultiplierError, NonFiniteViolationError, Refusals
from nupi.ascent.many_groups import expect
from nupi.ascent.repeat import Repeat
from nupi.ascent.step import check_dual, steps_in_graph, take_step

__all__ = [
    "NonFiniteMultiplierError",
    "NonFiniteViolationError",
    "Refusals",
    "Repeat",
    "check_dual",
    "expect",
    "steps_in_graph",
    "take_step",
]
