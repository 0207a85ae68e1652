"""Checks of what a Lagrangian is given: its constraints, and its penalties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from types import MethodType

from nupi.constraints.constraint import Constraint


def _remedy(came: object) -> str:
    """What to write in place of a class, of a method or of a constraint of `nupi.rates`."""
    if isinstance(came, (type, MethodType)):
        return f"; call it: {came.__name__}()"
    return "; give its .kind()" if hasattr(came, "kind") else ""


def check_constraints(constraints: Mapping[str, Constraint]) -> None:
    """Raise unless `constraints` is a mapping from names to groups of constraints."""
    if not isinstance(constraints, Mapping) or not constraints:
        raise TypeError(
            "constraints must map at least one name to an Equality, Inequality or Band, "
            f"but {constraints!r} came"
        )
    for name, constraint in constraints.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a constraint's name must be a string that is not empty, but {name!r} came")
        if not isinstance(constraint, Constraint):
            raise TypeError(
                f"constraint {name!r} must be an Equality, Inequality or Band, but {constraint!r} came"
                f"{_remedy(constraint)}"
            )


def checked_penalty(
    penalty: float | Mapping[str, float] | None, constraints: Mapping[str, Constraint]
) -> dict[str, float]:
    """The penalty of each constraint that has one."""
    if penalty is None:
        return {}
    given = penalty if isinstance(penalty, Mapping) else dict.fromkeys(constraints, penalty)
    unknown = [name for name in given if name not in constraints]
    if unknown:
        known = ", ".join(map(repr, constraints))
        raise ValueError(
            f"penalty names {unknown[0]!r}, which is not a constraint here; the constraints are {known}"
        )
    checked = {name: checked_positive(f"penalty of {name!r}", value) for name, value in given.items()}
    return {name: value for name, value in checked.items() if value is not None}


def checked_positive(name: str, value: float | None) -> float | None:
    """A number above 0 as a plain float, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a positive number, but {value!r} is a {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, but {value!r} came")
    return number
