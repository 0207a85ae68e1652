"""When `SelfTuned` finds new gains, what it keeps for that, and what each step writes to.

Finding gains costs as much as several steps, so that it is done once in a stride. A step is one of three:

| phase      | what it does besides nuPI's step                                          |
| ---------- | ------------------------------------------------------------------------- |
| `watching` | takes the violation in, and finds new gains                               |
| `noting`   | notes the violation: the noise is told from three violations in a row     |
| `resting`  | nothing                                                                   |
"""

from __future__ import annotations

from typing import Any

from nupi.optim import identification, self_tuning

RETUNINGS = 64  # in `steps`, once so many steps are past: in between, the gains stay what they are
NOTING, WATCHING, RESTING = "noting", "watching", "resting"


_PLANT = frozenset(self_tuning.PLANT)
_RETUNED = frozenset((*self_tuning.GAINS, *self_tuning.SUMMARIES, *identification.AT_REST))
UNTOUCHED = {
    WATCHING: _PLANT,
    NOTING: _PLANT | _RETUNED,
    RESTING: _PLANT | _RETUNED | set(self_tuning.NOTES),
    f"{WATCHING}, identified": frozenset(),
    f"{NOTING}, identified": _RETUNED | _PLANT,
    f"{RESTING}, identified": _RETUNED | _PLANT | set(self_tuning.NOTES),
}
"""What a step of each phase does not write to. Where the plant is identified, it is written with the gains."""


_ALWAYS = (*self_tuning.GAINS, *self_tuning.NOTES, *self_tuning.SUMMARIES, *self_tuning.PLANT)
SLOTS = {
    (True, True): ("xi", *_ALWAYS),
    (True, False): ("xi", "beyond", *_ALWAYS),
    (False, True): ("xi", *_ALWAYS, *identification.IDENTIFIED),
    (False, False): ("xi", "beyond", *_ALWAYS, *identification.IDENTIFIED),
}
"""The state, by whether the plant is measured and whether the multipliers are free."""


def phase_of(group: dict[str, Any], *, some_rows: bool) -> tuple[int, str]:
    """How many steps lie between two retunings now, and what the coming step is to them.

    Rows that come now and then are watched whenever they come. The noise is told from three steps in a row.
    """
    past = group["taken"] - RETUNINGS
    stride = int(group["steps"] / RETUNINGS)
    if some_rows or past < 0 or stride < 4:
        return 1, WATCHING
    left = stride - 1 - past % stride
    return stride, WATCHING if left == 0 else NOTING if left <= 2 else RESTING
