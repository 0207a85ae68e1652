"""Checks that refuse wrong gains, parameters and checkpoints."""

from __future__ import annotations

import math
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nupi.rule import Gain

# Options that distinguish the checkpoints of different optimizers.
ELSEWHERE = frozenset(
    (
        "init",
        "form",
        "kd",
        "one_sided",
        "beta",
        "gamma",
        "momentum",
        "nesterov",
        "dampening",
        "betas",
        "eps",
        "alpha",
    )
)
DESCEND = (
    "use maximize=False to minimize"  # left out in `minimize` and `sweep`: their multipliers must ascend
)
ANOTHER_PROBLEM = "it is a checkpoint of another problem, and nothing was loaded"


def check_parameter(param: torch.Tensor) -> None:
    """Raise if a parameter cannot be a multiplier."""
    if not param.is_floating_point():
        raise TypeError(
            f"params must be floating-point multipliers, but one is {param.dtype}; make it float32"
        )


def number(name: str, value: Any) -> float:
    """A number of any library as a plain float (infinite if it is too large), or an error that names it."""
    try:
        found = None if isinstance(value, (bool, str, bytes)) else float(value)
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
        found = None
    if found is None:
        raise TypeError(f"{name} must be a number, but {value!r} is a {type(value).__name__}")
    return found


def whole(name: str, count: object, least: int = 1) -> int:
    """A count as an int; raises an error that names it otherwise."""
    try:
        found = index(count)  # type: ignore[arg-type]
    except TypeError:
        found = least - 1
    if isinstance(count, bool) or found < least:
        raise ValueError(f"{name}={count!r} must be a whole number, at least {least}")
    return found


def checked_gain(name: str, gain: Gain, param: torch.Tensor) -> Gain:
    """A gain as a finite number, or as a tensor on the parameter's device that broadcasts to it."""
    if isinstance(gain, torch.Tensor):
        if not _broadcasts(gain.shape, param.shape):
            raise ValueError(
                f"{name} has shape {tuple(gain.shape)}, which does not broadcast to a parameter of shape "
                f"{tuple(param.shape)}; pass a number, or one {name} per constraint"
            )
        # On an accelerator, reading values would wait for the device. A wrong gain is found there by its effect.
        finite = gain.device.type != "cpu" or bool(torch.isfinite(gain).all())
        if gain.requires_grad or gain.device != param.device or gain.dtype != widened(param.dtype):
            gain = gain.detach().to(device=param.device, dtype=widened(param.dtype))
    elif isinstance(gain, bool) or not isinstance(gain, Real):
        raise TypeError(f"{name} must be a number or a tensor, but {gain!r} is a {type(gain).__name__}")
    else:
        # Always a plain float: torch.load(weights_only=True) does not accept numpy numbers.
        try:
            gain = float(gain)
        except OverflowError:
            gain = math.inf
        finite = math.isfinite(gain)
    if not finite:
        raise ValueError(f"{name} must be finite, but {gain!r} came")
    return gain


def check_range(name: str, gain: Gain, low: float, high: float, *, closed: bool, fix: str) -> None:
    """Refuse a gain outside (low, high), or outside [low, high) if `closed`; the error says how to correct it."""
    if isinstance(gain, torch.Tensor):
        if gain.device.type != "cpu":
            return
        inside = bool((((gain >= low) if closed else (gain > low)) & (gain < high)).all())
    else:
        inside = (low <= gain if closed else low < gain) and gain < high
    if not inside:
        interval = f"{'[' if closed else '('}{low:g}, {high:g})"
        raise ValueError(f"{name} must lie in {interval}, but {gain!r} came; {fix}")


def check_step_size(name: str, gain: Gain) -> None:
    """Refuse a negative step size, which would turn ascent into descent."""
    check_range(name, gain, 0.0, math.inf, closed=True, fix=DESCEND)


def check_smoothing(name: str, gain: Gain) -> None:
    """Refuse a smoothing whose moving average never forgets."""
    check_range(name, gain, -1.0, 1.0, closed=False, fix="outside it the past is not forgotten but grows")


def check_options(group: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse an option in the wrong case (such as `Kp`), and a `foreach` that is not True, False or None."""
    for option in group:
        if option not in known and option.lower() in known:
            raise ValueError(f"a param group has the option {option!r}; did you mean {option.lower()!r}?")
    if group["foreach"] not in (None, True, False):
        raise TypeError(f"foreach must be True, False or None, but {group['foreach']!r} came")


def check_checkpoint(
    param_groups: list[dict[str, Any]],
    state_dict: dict[str, Any],
    *,
    gain: str,
    options: Collection[str],
    slots: Collection[str],
) -> None:
    """Refuse a checkpoint of other parameters or of another optimizer, before anything is loaded."""
    if not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(
            f"state_dict has the keys {list(state_dict)}, not 'state' and 'param_groups'; pass what "
            "state_dict() of an optimizer returned. Nothing was loaded"
        )
    saved_groups = state_dict["param_groups"]
    here, there = ([len(group["params"]) for group in groups] for groups in (param_groups, saved_groups))
    if here != there:
        raise ValueError(
            f"state_dict has param groups of {there} parameters, but this optimizer has groups of {here}; "
            f"{ANOTHER_PROBLEM}"
        )
    for mine, saved in zip(param_groups, saved_groups, strict=True):
        # A newer option may be missing, but not the step size. An option of another optimizer is refused.
        unknown = [option for option in saved if option in ELSEWHERE and option not in options]
        if gain not in saved or unknown:
            has = f"has {', '.join(unknown)}" if unknown else f"has no {gain}"
            raise ValueError(f"state_dict {has}: it is of another optimizer, and nothing was loaded")
        names, saved_names = mine.get("param_names"), saved.get("param_names")
        if names and saved_names and names != saved_names:
            raise ValueError(f"state_dict is for {saved_names}, but here are {names}; {ANOTHER_PROBLEM}")
    params = [param for group in param_groups for param in group["params"]]
    saved_ids = [saved_id for group in saved_groups for saved_id in group["params"]]
    for position, (saved_id, param) in enumerate(zip(saved_ids, params, strict=True)):
        for slot, value in state_dict["state"].get(saved_id, {}).items():
            if slot not in (*slots, "started"):
                raise ValueError(
                    f"state_dict holds {slot!r}: it is of another optimizer, and nothing was loaded"
                )
            expected = param.shape[: value.dim()] if slot == "started" else param.shape
            if value.shape != expected:
                raise ValueError(
                    f"state_dict holds {slot!r} of shape {tuple(value.shape)} for parameter {position}, "
                    f"whose shape is {tuple(param.shape)}; {ANOTHER_PROBLEM}"
                )
            if not value.is_meta and not bool(torch.isfinite(value).all()):
                raise ValueError(
                    f"state_dict holds {slot!r} for parameter {position} with numbers that are not finite "
                    "(nan or inf), and nothing was loaded; go back to an older checkpoint"
                )


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of `shape` can stand where one of `target` is wanted."""
    if len(shape) > len(target):
        return False
    trailing = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True))
