"""The dual optimizer of a front end: given, made by a function that was given, or the default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from nupi.lagrangian import Lagrangian
from nupi.optim import SelfTuned

Dual: TypeAlias = (
    "torch.optim.Optimizer | Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None"
)
"""A dual optimizer; a function that makes one for the multipliers, as `partial(nupi.NuPI, ki=0.1)`; or the default."""


def as_lagrangian(constraints: Any) -> Lagrangian:
    """Constraints by name as a Lagrangian that joins processes by their mean; a Lagrangian stays as it is."""
    if isinstance(constraints, Lagrangian):
        return constraints
    if not isinstance(constraints, Mapping):
        raise TypeError(
            f"constraints must map names to constraints, or be a nupi.Lagrangian, but {constraints!r} came"
        )
    return Lagrangian(constraints, reduce="mean")


def check_order(cls: type, mixin: type, base: str) -> None:
    """Refuse a class whose bases come in the wrong order: the mixin's methods call those of what stands behind it."""
    before = cls.__mro__[: cls.__mro__.index(mixin)]
    if any(each.__name__ == base for each in before):
        raise TypeError(
            f"{cls.__name__} has {mixin.__name__} after {base}, where it does nothing; "
            f"put it first: class {cls.__name__}({mixin.__name__}, {base})"
        )


def check_dual(dual: Any) -> None:
    """Raise unless `dual` is a dual optimizer, a function that can make one, or None."""
    if dual is not None and not isinstance(dual, torch.optim.Optimizer) and not callable(dual):
        raise TypeError(
            "dual must be a dual optimizer, a function that makes one from the multipliers, as "
            f"partial(nupi.NuPI, ki=0.1, kp=1.0), or None, but {dual!r} came"
        )


def make_dual(
    dual: Dual, lagrangian: Lagrangian, steps: int, primal: list[torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """The optimizer itself.

    Args:
        dual: what the user gave.
        lagrangian: the multipliers to hold.
        steps: the optimizer steps of the whole training.
        primal: the optimizers of the model.
    """
    if dual is None:
        return default_dual(lagrangian, steps, primal)
    made = dual if isinstance(dual, torch.optim.Optimizer) else dual(lagrangian.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"dual returned {made!r}; it must return a torch optimizer that maximizes")
    if isinstance(made, SelfTuned):
        made.check_length(steps)
    return made


def default_dual(
    lagrangian: Lagrangian, steps: int, primal: list[torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """Gains that find themselves, so that the constraints are met in a quarter of training."""
    quarter = max(1, steps // 4)
    try:
        return SelfTuned(lagrangian.parameters(), steps=quarter, primal=primal)
    except TypeError:
        # An optimizer whose response cannot be measured, as Adafactor: it is identified from the violations.
        return SelfTuned(lagrangian.parameters(), steps=quarter)


def go_on(lagrangian: Lagrangian, dual: torch.optim.Optimizer) -> None:
    """Have a run that is resumed know its dual optimizer as one that was never interrupted does.

    A dual optimizer that measures is shown the graph from its first `ascend` on; a resumed run has had that already.
    """
    if hasattr(dual, "observe"):
        lagrangian._observer = dual
