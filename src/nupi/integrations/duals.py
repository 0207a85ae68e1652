"""The dual optimizer of a front end: the user's own, one made by the user's function, or the default."""

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
    """Make a Lagrangian with reduce="mean" from constraints by name; a Lagrangian is returned as it is."""
    if isinstance(constraints, Lagrangian):
        return constraints
    if not isinstance(constraints, Mapping):
        raise TypeError(
            f"constraints must map names to constraints, or be a nupi.Lagrangian, but {constraints!r} came"
        )
    return Lagrangian(constraints, reduce="mean")


def check_order(cls: type, mixin: type, base: str) -> None:
    """Refuse a class whose bases are in the wrong order: the mixin's methods call those of the base after it."""
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
    """Make the dual optimizer.

    Args:
        dual: the user's argument.
        lagrangian: the Lagrangian whose multipliers it gets.
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
    """`SelfTuned`, with a quarter of the training's steps."""
    quarter = max(1, steps // 4)
    try:
        return SelfTuned(lagrangian.parameters(), steps=quarter, primal=primal)
    except TypeError:
        # The response to some optimizers, such as Adafactor, cannot be measured: identify it from the violations.
        return SelfTuned(lagrangian.parameters(), steps=quarter)


def go_on(lagrangian: Lagrangian, dual: torch.optim.Optimizer) -> None:
    """Make a resumed run pass graphs to its dual optimizer, as a run that was never interrupted does.

    A dual optimizer that measures gets the graph of losses after its first `ascend`; a resumed run has had that one.
    """
    lagrangian.show_losses_to(dual)
