"""The nuPI rule. The formula is written only here; every other part of the library calls it.

The error e_t of a multiplier is its constraint violation. With gains ki and kp and smoothing nu:

    xi_t        = nu xi_{t-1} + (1 - nu) e_t
    theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})      velocity form
    theta_{t+1} = theta_0 + ki sum(e_0 .. e_t) + kp xi_t       positional form (Algorithm 1)

The forms are the same controller until a multiplier meets its bounds. There they differ in what they integrate:

| form          | state besides xi | when the multiplier meets a bound                                          |
| ------------- | ---------------- | -------------------------------------------------------------------------- |
| `velocity`    |                  | continues from the bound: what noise would take beyond the bound is cut off |
| `positional`  | `integral`       | the integral is set back to the bound                                      |
| `conditional` | `beyond`         | remembers how far beyond the bound it would be, and integrates no further  |

The first step. Each initial condition is the usual step with two choices: the value of xi_{-1}, and the weight of
e_0 in xi_0 (every later weight is 1 - nu). `opening` gives both.

| init       | meaning             | xi_{-1} | weight | first step            | after it              |
| ---------- | ------------------- | ------- | ------ | --------------------- | --------------------- |
| `bumpless` | xi_{-1} = e_0       | e_0     | 1 - nu | ki e_0                | no kick               |
| `zero`     | xi_0 = 0            | 0       | 0      | ki e_0                | a kick kp(1 - nu) e_1 |
| `error`    | xi_0 = e_0          | 0       | 1      | (ki + kp) e_0         |                       |
| `ema`      | xi_0 = (1 - nu) e_0 | 0       | 1 - nu | (ki + kp(1 - nu)) e_0 |                       |

Every function works in place and never branches on a tensor's value. `theta`, `e` and state are one tensor each, or
lists of tensors with the same update. A gain is a number. With single tensors it may also be a tensor that broadcasts
to `theta`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

if TYPE_CHECKING:
    from nupi.constraints import Bounds

Gain: TypeAlias = "float | torch.Tensor"
Tensors: TypeAlias = "torch.Tensor | list[torch.Tensor]"
Init: TypeAlias = Literal["zero", "error", "ema", "bumpless"]
Form: TypeAlias = Literal["velocity", "positional", "conditional"]

INITS: tuple[Init, ...] = get_args(Init)
FORMS: tuple[Form, ...] = get_args(Form)


def opening(init: Init, weight: Gain) -> tuple[float, Gain]:
    """Return the initial condition as two numbers: the share of e_0 in xi_{-1}, and the weight of e_0 in xi_0.

    >>> opening("error", 0.1)
    (0.0, 1.0)
    """
    if init == "zero":
        return 0.0, 0.0
    if init == "error":
        return 0.0, 1.0
    if init == "ema":
        return 0.0, weight
    if init == "bumpless":
        return 1.0, weight
    raise ValueError(f"init={init!r} is not an initial condition of nuPI; choose one of {', '.join(INITS)}")


def open_(
    theta: Tensors, xi: Tensors, integral: Tensors | None, e: Tensors, kp: Gain, weight: Gain, init: Init
) -> Gain:
    """Set the initial condition before the first step, and return the weight of e_0 for that step.

    Args:
        theta: the initial multipliers, theta_0.
        xi: becomes xi_{-1}.
        integral: of the positional form, or None; becomes theta_0 - kp xi_{-1}.
        e: the first error, e_0.
        kp: the proportional gain.
        weight: 1 - nu.
        init: one of `INITS`.
    """
    share, first_weight = opening(init, weight)
    if share:
        copy_(xi, e)
    else:
        zero_(xi)
    if integral is not None:
        copy_(integral, theta)
        add_scaled_(integral, xi, -kp)
    return first_weight


def integral_(theta: Tensors, e: Tensors, ki: Gain) -> None:
    """Gradient ascent, which is the rule at kp = 0: theta += ki e. It has no xi."""
    add_scaled_(theta, e, ki)


def velocity_(
    theta: Tensors,
    xi: Tensors,
    e: Tensors,
    ki: Gain,
    kp: Gain,
    weight: Gain,
    products: tuple[Gain, Gain] | None = None,
) -> None:
    """One step of the velocity form; `weight` is 1 - nu, or what `open_` returned on the first step.

    theta += (ki + kp weight) e - kp weight xi;  xi = lerp(xi, e, weight)

    If gains do not change for many steps, pass `products`: ki + kp weight, and kp weight, computed once.
    """
    pull, damping = products or (None, kp * weight)
    if pull is not None:
        add_scaled_(theta, e, pull)
    elif type(damping) is not float and (_one_each(ki, theta) or _one_each(damping, theta)):
        # The sum of the gains would be a temporary as large as theta.
        add_scaled_(theta, e, ki)
        add_scaled_(theta, e, damping)
    else:
        add_scaled_(theta, e, ki + damping)
    subtract_scaled_(theta, xi, damping)
    lerp_(xi, e, weight)


def positional_(
    theta: Tensors,
    xi: Tensors,
    integral: Tensors,
    e: Tensors,
    ki: Gain,
    kp: Gain,
    weight: Gain,
    bounds: Bounds | None = None,
) -> None:
    """One step of the positional form; `integral` starts at theta_0 - kp xi_{-1}.

    integral += ki e;  xi = lerp(xi, e, weight);  theta = integral + kp xi

    If theta leaves its bounds, the integral is set back to them. Otherwise a multiplier that has been at a bound for
    many steps would first have to undo everything that it integrated there.
    """
    add_scaled_(integral, e, ki)
    lerp_(xi, e, weight)
    copy_(theta, integral)
    add_scaled_(theta, xi, kp)
    if bounds is not None:
        for each, kept in zip(as_list(theta), as_list(integral), strict=True):
            kept.copy_(torch.where(bounds.outside(each), bounds.clamped(kept), kept))


def conditional_(
    theta: Tensors,
    xi: Tensors,
    beyond: Tensors,
    e: Tensors,
    ki: Gain,
    kp: Gain,
    weight: Gain,
    bounds: Bounds,
    products: tuple[Gain, Gain] | None = None,
) -> None:
    """One step of the conditional form: the velocity form with conditional integration at the bounds.

    The controller moves u = theta + beyond, which may be outside the bounds; theta is u after projection. An error
    that drives u further out is integrated up to the bound and no further. For the lower bound l:

        u = theta + beyond + ki e + kp (xi_t - xi_{t-1});  beyond = min(u - ki min(e, 0) - l, 0);  theta = max(u, l)

    The upper bound is its mirror image. On return `theta` is u; the caller projects it.
    """
    add_scaled_(theta, beyond, 1.0)
    velocity_(theta, xi, e, ki, kp, weight, products)
    if bounds.lower is not None:
        clamp_into_(beyond, e, None, 0.0)
        subtract_from_(beyond, theta, ki)
        clamp_into_(beyond, beyond, None, bounds.lower)
        if bounds.lower:
            for each in as_list(beyond):
                each.sub_(bounds.lower)
    else:
        zero_(beyond)
    if bounds.upper is not None:
        for u, past, error in zip(as_list(theta), as_list(beyond), as_list(e), strict=True):
            past.add_((u - ki * error.clamp(min=0) - bounds.upper).clamp_(min=0))


def limit_beyond_(beyond: torch.Tensor, xi: torch.Tensor, kp: Gain) -> None:
    """Limit `beyond` to what the present gains can explain: beyond = clip(beyond, 0 .. kp xi). For gains that change.

    If a large violation vanishes by itself, the controller goes far below the bound: by kp times the fall. If kp has
    become small since then, the integral would need many steps to come back.
    """
    reach = kp * xi
    beyond.clamp_(reach.clamp(max=0.0), reach.clamp(min=0.0))


# --- arithmetic in place, on one tensor or on a list of them, without temporaries; `x` is what `target` is ---


def add_scaled_(target: Tensors, x: Any, scale: Any) -> None:
    """`target += scale * x`."""
    if isinstance(target, list):
        torch._foreach_add_(target, x, alpha=scale)
    elif isinstance(scale, torch.Tensor):
        target.addcmul_(x, scale)
    else:
        target.add_(x, alpha=scale)


def subtract_scaled_(target: Tensors, x: Any, scale: Any) -> None:
    """`target -= scale * x`."""
    if isinstance(target, list):
        torch._foreach_add_(target, x, alpha=-scale)
    elif isinstance(scale, torch.Tensor):
        target.addcmul_(x, scale, value=-1.0)
    else:
        target.add_(x, alpha=-scale)


def subtract_from_(target: Tensors, x: Any, scale: Any) -> None:
    """`target = x - scale * target`."""
    if isinstance(target, list):
        new = torch._foreach_add(x, target, alpha=-scale)
        torch._foreach_copy_(target, new)
    elif isinstance(scale, torch.Tensor):
        torch.addcmul(x, target, scale, value=-1.0, out=target)
    else:
        torch.add(x, target, alpha=-scale, out=target)


def copy_(target: Tensors, x: Any) -> None:
    """`target = x`."""
    if isinstance(target, list):
        torch._foreach_copy_(target, x)
    else:
        target.copy_(x)


def zero_(target: Tensors) -> None:
    """`target = 0`."""
    if isinstance(target, list):
        torch._foreach_zero_(target)
    else:
        target.zero_()


def scale_(target: Tensors, scale: Any) -> None:
    """`target *= scale`."""
    if isinstance(target, list):
        torch._foreach_mul_(target, scale)
    else:
        target.mul_(scale)


def lerp_(target: Tensors, x: Any, weight: Any) -> None:
    """`target += weight * (x - target)`."""
    if type(weight) is float and weight == 1.0:  # no smoothing
        copy_(target, x)
    elif isinstance(target, list):
        torch._foreach_lerp_(target, x, weight)
    else:
        target.lerp_(x, weight)


def clamp_into_(target: Tensors, x: Any, low: Any, high: Any) -> None:
    """`target = x` within [low, high]; None leaves that side open."""
    if not isinstance(target, list):
        if target is not x:
            torch.clamp(x, low, high, out=target)
        elif high is None:
            target.clamp_min_(low)
        else:
            target.clamp_(low, high)
        return
    if target is not x:
        copy_(target, x)
    if low is not None:
        torch._foreach_clamp_min_(target, low)
    if high is not None:
        torch._foreach_clamp_max_(target, high)


def rows_like(each: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Add dimensions of size 1 at the end of a tensor, so that it broadcasts over the trailing dimensions of `like`."""
    return each.view(*each.shape, *(1,) * (like.dim() - each.dim()))


def widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype that state and arithmetic have: never narrower than float32."""
    return torch.promote_types(dtype, torch.float32)


def as_list(tensors: Tensors) -> list[torch.Tensor]:
    """One tensor or many, as a list."""
    return tensors if isinstance(tensors, list) else [tensors]


def _one_each(gain: Gain, theta: Tensors) -> bool:
    """Whether there is one gain for every multiplier, not one for all of them or for a row."""
    return (
        isinstance(gain, torch.Tensor)
        and isinstance(theta, torch.Tensor)
        and gain.numel() == theta.numel() > 1
    )
