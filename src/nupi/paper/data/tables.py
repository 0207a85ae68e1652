"""Rows of a table as tensors, with groups that may overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """Features (n, columns), labels in {0, 1} as floats (n,), and who belongs to which group (n, groups)."""

    features: torch.Tensor
    labels: torch.Tensor
    members: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, which: torch.Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.features[which], self.labels[which], self.members[which])


@dataclass(frozen=True)
class Table:
    """Both splits, and what the groups are called."""

    train: Rows
    test: Rows
    groups: tuple[str, ...]

    def summary(self) -> str:
        """What it holds, in one line."""
        return (
            f"{len(self.train):,} training and {len(self.test):,} test rows, "
            f"{self.train.features.shape[1]} features, {len(self.groups)} groups"
        )


def split_of(
    features: pd.DataFrame,
    labels: pd.Series[Any],
    members: pd.DataFrame,
    train: NDArray[Any],
    test: NDArray[Any],
) -> Table:
    """The rows numbered `train` and `test`."""
    x = torch.tensor(features.to_numpy(dtype="float32"))
    y = torch.tensor(labels.to_numpy(dtype="float32"))
    m = torch.tensor(members.to_numpy(dtype=bool))
    one, other = (
        Rows(x[rows], y[rows], m[rows]) for rows in (torch.from_numpy(train), torch.from_numpy(test))
    )
    return Table(one, other, tuple(map(str, members.columns)))


def with_levels(data: Table, levels: int = 16, *, few: int = 8) -> Table:
    """The same with columns "value above a level", as trees have them, for every column of more than `few` values.

    Levels are the quantiles of a column's training rows and those of its distinct values: the first are dense where
    rows are, the second reach what is rare, such as capital gains.
    """
    shares = torch.linspace(0, 1, levels + 1, dtype=torch.float64)
    cuts: list[tuple[int, torch.Tensor]] = []
    for column, values in enumerate(data.train.features.double().unbind(1)):
        distinct = values.unique()
        if len(distinct) > few:
            found = torch.cat([values.quantile(shares[1:-1]), distinct.quantile(shares[:-1])]).unique()
            cuts.append((column, found))
    train, test = (
        Rows(
            torch.cat(
                [rows.features]
                + [(rows.features[:, c : c + 1] > found).to(rows.features.dtype) for c, found in cuts],
                dim=1,
            ),
            rows.labels,
            rows.members,
        )
        for rows in (data.train, data.test)
    )
    return Table(train, test, data.groups)
