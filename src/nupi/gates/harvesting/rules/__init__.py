"""A rule for each kind of layer or operation: what it does to its input channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.gates.harvesting.rules.common import NotCoveredError
from nupi.gates.harvesting.rules.elementwise import ELEMENTWISE, ZERO_TO_ZERO
from nupi.gates.harvesting.rules.joins import JOINS
from nupi.gates.harvesting.rules.layers import BATCH_NORMS, CONVOLUTIONS, LAYER_NORMS, LAYERS, NARROWED
from nupi.gates.harvesting.rules.sizes import SIZES, SPLITS
from nupi.gates.harvesting.rules.space import POOLS, RESHAPES, SPACE

if TYPE_CHECKING:
    from nupi.gates.harvesting.rules.common import Rule

__all__ = [
    "BATCH_NORMS",
    "CONVOLUTIONS",
    "LAYER_NORMS",
    "NARROWED",
    "POOLS",
    "RESHAPES",
    "RULES",
    "SIZES",
    "SPLITS",
    "ZERO_TO_ZERO",
    "NotCoveredError",
]

RULES: dict[Any, Rule] = {**LAYERS, **ELEMENTWISE, **JOINS, **SPACE, **SIZES}
