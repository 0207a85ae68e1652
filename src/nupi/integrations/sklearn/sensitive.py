"""Turn sensitive features (columns of values) into the group numbers that rates need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

Columns: TypeAlias = "dict[str, list[Any]]"


class Attributes:
    """The sensitive attributes of a data set, and the groups that each of them has.

    Args:
        values: the values of each attribute, in the order of their group numbers.
        intersections: whether there is one attribute, of the combinations of all columns.
    """

    def __init__(self, values: dict[str, list[Any]], *, intersections: bool) -> None:
        self.values, self.intersections = values, intersections
        self._number = {name: {value: i for i, value in enumerate(each)} for name, each in values.items()}

    @classmethod
    def learn(
        cls, features: Any, rows: int, *, intersections: bool, known: Attributes | None = None
    ) -> Attributes:
        """The attributes of these rows. With intersections, only combinations that occur are groups.

        Args:
            features: the sensitive features.
            rows: the number of rows.
            intersections: whether the combinations of all columns are the groups.
            known: attributes whose groups keep their numbers; others come after them.
        """
        columns = _joined(as_columns(features, rows), intersections=intersections)
        declared = {} if intersections else _declared(features)
        values = {name: declared.get(name) or _ordered(column) for name, column in columns.items()}
        if known is not None:
            values = {
                name: list(dict.fromkeys([*known.values.get(name, []), *each]))
                for name, each in values.items()
            }
        return cls(values, intersections=intersections)

    @property
    def sizes(self) -> dict[str, int]:
        """How many groups each attribute has."""
        return {name: len(values) for name, values in self.values.items()}

    def numbers(self, features: Any, rows: int) -> dict[str, torch.Tensor]:
        """The group number of each row, by attribute."""
        columns = _joined(as_columns(features, rows), intersections=self.intersections)
        if set(columns) != set(self.values):
            raise ValueError(
                f"sensitive_features has the columns {sorted(columns)}, but the model was fitted with "
                f"{sorted(self.values)}"
            )
        return {name: self._numbered(name, columns[name]) for name in self.values}

    def _numbered(self, name: str, column: list[Any]) -> torch.Tensor:
        known = self._number[name]
        strangers = [value for value in dict.fromkeys(column) if value not in known]
        if strangers:
            raise ValueError(
                f"sensitive_features[{name!r}] has {strangers[:3]!r}, a group that the first rows did not have; "
                f"known are {self.values[name]!r}. For partial_fit, name all groups by a pandas Categorical"
            )
        return torch.tensor([known[value] for value in column], dtype=torch.int64)


def as_columns(features: Any, rows: int) -> Columns:
    """One list of plain values for each attribute, from a frame, a series, a mapping, a list or an array."""
    if hasattr(features, "columns") or isinstance(features, Mapping):
        names = features.columns if hasattr(features, "columns") else features
        found = {str(name): features[name] for name in names}
    elif getattr(features, "name", None) is not None:
        found = {str(features.name): features}
    else:
        table = np.asarray(features)
        if table.ndim == 2 and table.shape[1] != 1:
            found = {f"attribute {i}": table[:, i] for i in range(table.shape[1])}
        else:
            found = {"group": table.reshape(-1) if table.ndim == 2 else table}
    if not found:
        raise ValueError("sensitive_features has no column")
    return {name: _plain(name, column, rows) for name, column in found.items()}


def _plain(name: str, column: Any, rows: int) -> list[Any]:
    values = np.asarray(column)
    if values.ndim != 1 or len(values) != rows:
        raise ValueError(
            f"sensitive_features[{name!r}] has shape {values.shape}, but X has {rows} rows; give one value a row"
        )
    plain: list[Any] = values.tolist()
    if any(
        value is None or type(value).__name__ in ("NAType", "NaTType") or value != value for value in plain
    ):
        raise ValueError(
            f"sensitive_features[{name!r}] has missing values; give them a group of their own, such as 'unknown'"
        )
    return plain


def _joined(columns: Columns, *, intersections: bool) -> Columns:
    if not intersections or len(columns) < 2:
        return columns
    return {" & ".join(columns): list(zip(*columns.values(), strict=True))}


def _declared(features: Any) -> dict[str, list[Any]]:
    """The categories of pandas Categoricals, which may include groups that have not occurred yet."""
    columns = (
        {str(name): features[name] for name in features.columns}
        if hasattr(features, "columns")
        else {str(getattr(features, "name", None) or "group"): features}
    )
    found = {
        name: getattr(getattr(column, "dtype", None), "categories", None) for name, column in columns.items()
    }
    return {name: categories.tolist() for name, categories in found.items() if categories is not None}


def _ordered(column: list[Any]) -> list[Any]:
    values = list(dict.fromkeys(column))
    try:
        return sorted(values)
    except TypeError:  # values of several types have no order
        return sorted(values, key=str)
