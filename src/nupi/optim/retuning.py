"""When `SelfTuned` finds new gains, what it keeps for that, and what each step writes to.

Finding gains costs as much as several steps, so that it is done now and then. A step is one of four:

| phase      | what it does besides nuPI's step                                          | in `steps`      |
| ---------- | ------------------------------------------------------------------------- | --------------- |
| `retuning` | watches, and finds new gains                                              | 5               |
| `watching` | takes the violation in                                                    | 64, with these  |
| `noting`   | notes the violation: the noise is told from three violations in a row     | two before each |
| `resting`  | nothing                                                                   | all others      |

Where the response is identified, it may change whenever the violation is watched, so that gains are found each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.optim import identification, self_tuning

if TYPE_CHECKING:
    from collections.abc import Mapping

WATCHINGS = 64  # in `steps`, once so many steps are past
WATCHINGS_PER_RETUNING = 12
PHASES = RESTING, NOTING, WATCHING, RETUNING = "resting", "noting", "watching", "retuning"

_AT_REST = frozenset((*self_tuning.PLANT, *self_tuning.GAINS, *self_tuning.JUDGED))
_UNWATCHED = frozenset((*_AT_REST, *self_tuning.SUMMARIES, *identification.AT_REST))
_MEASURED = {
    RETUNING: frozenset(self_tuning.PLANT),
    WATCHING: _AT_REST,
    NOTING: _UNWATCHED,
    RESTING: _UNWATCHED | set(self_tuning.NOTES),
}
UNTOUCHED = {True: _MEASURED, False: {**_MEASURED, RETUNING: frozenset()}}
"""What a step of each phase does not write to, by whether the plant is measured; else it is written with the gains."""


_ALWAYS = (
    *self_tuning.GAINS,
    *self_tuning.NOTES,
    *self_tuning.SUMMARIES,
    *self_tuning.JUDGED,
    *self_tuning.PLANT,
)
SLOTS = {
    (True, True): ("xi", *_ALWAYS),
    (True, False): ("xi", "beyond", *_ALWAYS),
    (False, True): ("xi", *_ALWAYS, *identification.IDENTIFIED),
    (False, False): ("xi", "beyond", *_ALWAYS, *identification.IDENTIFIED),
}
"""The state, by whether the plant is measured and whether the multipliers are free."""


def phase_of(group: dict[str, Any], *, some_rows: bool) -> tuple[int, str]:
    """How many steps lie between two watchings now, and what the coming step is.

    Rows that come now and then are watched whenever they come. The noise is told from three steps in a row.
    """
    past = group["taken"] - WATCHINGS
    stride = int(group["steps"] / WATCHINGS)
    if some_rows or past < 0 or stride < 4:
        return 1, RETUNING
    number, passed = divmod(past, stride)
    left = stride - 1 - passed
    if left > 2:
        return stride, RESTING
    if left:
        return stride, NOTING
    retunes = not group["measured"] or (number + 1) % WATCHINGS_PER_RETUNING == 0
    return stride, RETUNING if retunes else WATCHING


def between_retunings(group: Mapping[str, Any]) -> int:
    """How many steps lie between two retunings, at the stride that the last step had."""
    stride: int = group["stride"]
    return stride * WATCHINGS_PER_RETUNING if stride > 1 and group["measured"] else stride
