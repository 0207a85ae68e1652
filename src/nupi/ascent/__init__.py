"""One step of a dual optimizer over the multipliers of some constraints: all of it, or nothing.

| file                  | what it has                                                                        |
| --------------------- | ---------------------------------------------------------------------------------- |
| `step.py`             | the step: checked, taken, projected, and undone if anything raises                 |
| `snapshot.py`         | what a step may change, kept so that it can be put back, on the host or on a device |
| `finite.py`           | violations and multipliers that are not finite: the errors, and what a device reports |
| `repeat.py`           | a step like the last one, without finding everything out again                     |
| `many_groups.py`      | such a step over many small groups, as one vector                                  |
| `other_optimizers.py` | what torch's own optimizers need                                                   |
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
