"""Grids of settings: named axes of values, or a union of such grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

Axes: TypeAlias = "dict[str, tuple[Any, ...]]"
Grid: TypeAlias = "Mapping[str, Iterable[Any]] | Sequence[Mapping[str, Iterable[Any]]]"


def expand(grid: Grid) -> tuple[Axes, tuple[dict[str, Any], ...]]:
    """The axes of a grid and its points; the last axis changes fastest.

    A list of grids is their union. The grids may have different axes, so the union has one axis, "setting".

    >>> axes, points = expand({"ki": [0.1, 1.0], "kp": [0, 5]})
    >>> points[1]
    {'ki': 0.1, 'kp': 5}
    >>> axes, points = expand([{"ki": [0.1], "kp": [1.0]}, {"lr": [0.1, 0.2]}])
    >>> axes, points[2]
    ({'setting': (0, 1, 2)}, {'lr': 0.2})
    """
    if isinstance(grid, Mapping):
        axes = {str(name): _values(name, values) for name, values in grid.items()}
        if not axes:
            raise ValueError("grid is empty: name at least one axis, as in grid={'ki': [0.01, 0.1]}")
        points = tuple(
            dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values())
        )
        return axes, points
    if isinstance(grid, Sequence) and grid and all(isinstance(part, Mapping) for part in grid):
        points = tuple(point for part in grid for point in expand(part)[1])
        return {"setting": tuple(range(len(points)))}, points
    raise TypeError(f"grid must be a dict of axes, or a list of such dicts, but {grid!r} came")


def _values(name: object, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, torch.Tensor) or (hasattr(values, "tolist") and hasattr(values, "dtype")):
        values = values.tolist()
    if isinstance(values, (str, int, float)) or not isinstance(values, Iterable):
        raise TypeError(f"axis {name!r} of the grid must be a list of values, but {values!r} came; use [...]")
    found = tuple(_number(name, value) for value in values)
    if not found:
        raise ValueError(f"axis {name!r} of the grid has no values")
    if len(set(map(_identity, found))) != len(found):
        raise ValueError(f"axis {name!r} of the grid holds a value twice: {found}")
    return found


def _number(name: object, value: Any) -> Any:
    """A plain Python value for a tensor or a numpy number of one element."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            float(value)
        except OverflowError:
            raise ValueError(
                f"axis {name!r} of the grid holds a number of {len(str(value))} digits, which no float can hold; "
                "use a smaller one"
            ) from None
    if not hasattr(value, "item"):
        return value
    if math.prod(getattr(value, "shape", ())) != 1:
        raise TypeError(
            f"axis {name!r} of the grid must hold one number per setting, but a {type(value).__name__} of shape "
            f"{tuple(value.shape)} came; use the numbers themselves as the values"
        )
    return value.item()


def _identity(value: Any) -> object:
    """A key that is equal for values that make the same setting: 1 and 1.0 do, 1 and True do not."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return isinstance(value, bool), value
