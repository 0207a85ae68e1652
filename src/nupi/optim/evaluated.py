"""The loss and the violations of the data that the user wants the response to be measured on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.lagrangian import Violations

    Evaluate: TypeAlias = Callable[[], tuple[torch.Tensor, Violations]]


def evaluated(evaluate: Evaluate) -> tuple[torch.Tensor, Violations]:
    """What the user's function gives, or an error that says what it should give."""
    given = evaluate()
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], torch.Tensor)):
        came = type(given).__name__
        if isinstance(given, tuple):
            came = f"({', '.join(type(each).__name__ for each in given)})"
        raise TypeError(
            f"evaluate must return (loss, violations), as lagrangian(loss, violations) takes them, but {came} came"
        )
    loss, violations = given
    if loss.numel() != 1:
        raise ValueError(
            f"evaluate must return a scalar loss, but it has shape {tuple(loss.shape)}; take its mean or sum"
        )
    plain = {"the loss": loss}
    if isinstance(violations, Mapping):  # `lagrangian` refuses anything else
        tensors = {name: each for name, each in violations.items() if isinstance(each, torch.Tensor)}
        plain |= {f"the violation of {name!r}": each for name, each in tensors.items()}
    for what, value in plain.items():
        if not value.requires_grad:
            raise ValueError(
                f"{what} that evaluate returned has no gradient, so no response can be measured; compute it without "
                "torch.no_grad() and without detach()"
            )
        if not bool(value.isfinite().all()):
            raise ValueError(
                f"{what} that evaluate returned is not finite, so no response can be measured; look at the data that "
                "evaluate uses"
            )
    return loss, violations
