"""Rows of data as tensors, and their split into training rows and held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nupi.integrations.sklearn.sensitive import Attributes


@dataclass(frozen=True)
class Rows:
    """Rows of data: features, labels (0 or 1, or the class), groups by attribute, and weights with mean 1."""

    x: torch.Tensor
    y: torch.Tensor
    groups: Mapping[str, torch.Tensor] | None
    weights: torch.Tensor
    unit: float = 1.0  # the weight of a row of weight 1 after weights are scaled to mean 1

    def __len__(self) -> int:
        return len(self.y)

    def chosen(self, which: torch.Tensor) -> Rows:
        """Only these rows."""
        groups = None if self.groups is None else {name: each[which] for name, each in self.groups.items()}
        return Rows(self.x[which], self.y[which], groups, self.weights[which], self.unit)


def as_rows(
    X: Any,
    y: Any,
    sensitive: Any,
    weight: Any,
    attributes: Attributes | None,
    classes: Any,
    *,
    flipped: bool,
    device: Any,
) -> Rows:
    """Arrays as tensors on a device; labels become numbers, 1 for the positive class if there are two.

    Args:
        X: the features.
        y: the label of each row.
        sensitive: the sensitive features, or None.
        weight: the weight of each row.
        attributes: the sensitive attributes and their groups, or None.
        classes: all labels, in order.
        flipped: whether the first of two classes is the positive one.
        device: the device of the tensors.
    """
    if not weight.sum() > 0:
        raise ValueError("sample_weight must have some weight above zero, but all are zero")
    known = np.isin(y, classes)
    if not known.all():
        raise ValueError(f"y has {np.unique(y[~known])!r}, but the classes are {classes!r}")
    if (sensitive is None) != (attributes is None):
        raise ValueError("sensitive_features must come in every call, or in none")
    groups = None if attributes is None else attributes.numbers(sensitive, len(y))
    labels = torch.from_numpy(np.searchsorted(classes, y)).long()
    weights = torch.tensor(weight, device=device)
    return Rows(
        torch.tensor(X, device=device),
        (1 - labels if flipped else labels).to(device),
        None if groups is None else {name: each.to(device) for name, each in groups.items()},
        weights / weights.mean(),
        1.0 / float(weights.mean()),
    )


def split(rows: Rows, fraction: float, random: np.random.RandomState) -> tuple[Rows, Rows]:
    """Training rows and held-out rows, with the same shares of labels and groups if possible."""
    numbers = [rows.y, *(rows.groups or {}).values()]
    strata = torch.stack(numbers, dim=1).unique(dim=0, return_inverse=True)[1].cpu().numpy()
    order, labels = np.arange(len(rows)), rows.y.cpu().numpy()
    parts = None
    for by in (strata, labels):
        try:
            parts = train_test_split(order, test_size=fraction, stratify=by, random_state=random)
        except ValueError:  # too few rows of a kind
            continue
        break
    parts = parts or train_test_split(order, test_size=fraction, random_state=random)
    one, other = (rows.chosen(torch.as_tensor(np.sort(part), device=rows.y.device)) for part in parts)
    return one, other
