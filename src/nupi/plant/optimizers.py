"""What an optimizer's step makes of a gradient: x moves by -P gradient, with a P for every element of x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nupi.plant.shards import local

if TYPE_CHECKING:
    from collections.abc import Sequence

SUPPORTED = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)


class Scaling(NamedTuple):
    """P of one parameter: rate / sqrt(second moment), or the rate alone for SGD.

    Of a sharded parameter, the second moment is this process's part.
    """

    parameter: torch.Tensor
    rate: float
    second_moment: torch.Tensor | None = None
    kept: float = 1.0  # of the second moment, when the next gradient comes
    newest: float = 0.0  # the share of that gradient's square in it


def check_optimizers(optimizers: Any) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers as a tuple, or an error that says which kinds can be measured."""
    if isinstance(optimizers, torch.nn.Module):
        raise TypeError(
            f"primal must be the optimizer of the model, but a model came ({type(optimizers).__name__}); give the "
            "optimizer that trains it"
        )
    try:
        found = (optimizers,) if isinstance(optimizers, torch.optim.Optimizer) else tuple(optimizers)
    except TypeError:
        raise TypeError(
            f"primal must be the optimizer of the model, or several of them, but a {type(optimizers).__name__} came"
        ) from None
    if not found:
        raise ValueError(
            "primal is empty; give the optimizer of the model, or leave primal out, and the response is identified "
            "from the violations"
        )
    for optimizer in found:
        if isinstance(optimizer, torch.Tensor):
            raise TypeError(
                "primal must be the optimizer of the model, but parameters came; give the optimizer itself"
            )
        if not isinstance(optimizer, SUPPORTED):
            known = ", ".join(kind.__name__ for kind in SUPPORTED)
            raise TypeError(
                f"primal is a {type(optimizer).__name__}, whose response cannot be measured; it is known for "
                f"{known}. Leave primal out, and the response is identified from the violations"
            )
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ValueError(
                f"primal is a {type(optimizer).__name__} with maximize=True, which would train the model to violate "
                "its constraints; the model's optimizer must minimize the Lagrangian"
            )
    return found


def scalings(optimizers: Sequence[torch.optim.Optimizer]) -> list[Scaling] | None:
    """P of every parameter that is trained, at this moment; None if an optimizer has not stepped yet.

    A constant gradient moves x by lr / (1 - momentum) a step, once momentum has built up. Adam's rate has no such
    factor: its first moment is an average. Weight decay does not depend on the multipliers, and is left out.
    """
    found = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.requires_grad:
                    continue
                one = _scaling(optimizer, group, parameter)
                if one is None:
                    return None
                found.append(one)
    return found


def _scaling(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> Scaling | None:
    rate = float(group["lr"])
    state = optimizer.state.get(parameter, {})
    if isinstance(optimizer, torch.optim.SGD):
        momentum = group["momentum"]
        damping = 1.0 - group["dampening"] if momentum else 1.0
        return Scaling(parameter, rate * damping / (1.0 - momentum))
    if isinstance(optimizer, torch.optim.RMSprop):
        if "square_avg" not in state:
            return None
        moment = local(state["square_avg"])
        if group["centered"]:
            moment = (moment - local(state["grad_avg"]).square()).clamp(min=0.0)
        return Scaling(
            parameter, rate / (1.0 - group["momentum"]), moment, group["alpha"], 1.0 - group["alpha"]
        )
    if isinstance(optimizer, torch.optim.Adagrad):
        if not float(state["step"]):
            return None
        rate /= 1.0 + (float(state["step"]) - 1) * group["lr_decay"]
        return Scaling(parameter, rate, local(state["sum"]), 1.0, 1.0)
    if "exp_avg_sq" not in state:
        return None
    moment = local(state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"])
    steps, keep = float(state["step"]), float(group["betas"][1])
    known, soon = 1.0 - keep**steps, 1.0 - keep ** (steps + 1)
    return Scaling(parameter, rate, moment / known, keep * known / soon, (1.0 - keep) / soon)
