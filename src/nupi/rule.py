"""The nuPI rule. Every other part of the library calls it; the formula stands nowhere else.

The error e_t of a multiplier is its constraint violation. With gains ki and kp and smoothing nu:

    xi_t        = nu xi_{t-1} + (1 - nu) e_t
    theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})      velocity form
    theta_{t+1} = theta_0 + ki sum(e_0 .. e_t) + kp xi_t       positional form (Algorithm 1)

The forms are one controller until a multiplier meets its bounds. There they differ in what they integrate:

| form          | state besides xi | where the multiplier meets a bound                                      |
| ------------- | ---------------- | ----------------------------------------------------------------------- |
| `velocity`    |                  | goes on from the bound: what noise would take below it is cut off       |
| `positional`  | `integral`       | the integral is brought back to the bound                               |
| `conditional` | `beyond`         | remembers how far beyond the bound it would be, and integrates no further |

The first step. Each initial condition is the ordinary step with a choice of two things: which xi_{-1} to start
from, and the weight of e_0 in xi_0 (every later weight is 1 - nu). `opening` gives both.

| init       | meaning             | xi_{-1} | weight | first step            | after it              |
| ---------- | ------------------- | ------- | ------ | --------------------- | --------------------- |
| `bumpless` | xi_{-1} = e_0       | e_0     | 1 - nu | ki e_0                | no kick               |
| `zero`     | xi_0 = 0            | 0       | 0      | ki e_0                | a kick kp(1 - nu) e_1 |
| `error`    | xi_0 = e_0          | 0       | 1      | (ki + kp) e_0         |                       |
| `ema`      | xi_0 = (1 - nu) e_0 | 0       | 1 - nu | (ki + kp(1 - nu)) e_0 |                       |

Every function works in place and never looks at a value. `theta`, `e` and state are one tensor, or lists of tensors
that move alike. A gain is a number, or, with single tensors, a tensor that broadcasts to `theta`.
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
    """The initial condition, as the share of e_0 in xi_{-1} and the weight of e_0 in xi_0.

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
    """Set the initial condition before the first step, and return the weight to take that step with.

    Args:
        theta: the multipliers as they start, theta_0.
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
    """Gradient ascent, the rule at kp = 0: theta += ki e; there is no xi to keep."""
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
    """One step of the velocity form; `weight` is 1 - nu, or the opening's on the first step.

    theta += (ki + kp weight) e - kp weight xi;  xi = lerp(xi, e, weight)

    Gains that stay for many steps may come with `products`, which are ki + kp weight and kp weight.
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

    Where theta leaves its bounds, the integral is brought back to them: a multiplier that has spent long at a bound
    would have to pay back all it integrated there.
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

    The controller moves u = theta + beyond, which may lie outside the bounds; theta is u projected. An error that
    drives u further out is integrated up to the bound and no further. For the lower bound l:

        u = theta + beyond + ki e + kp (xi_t - xi_{t-1});  beyond = min(u - ki min(e, 0) - l, 0);  theta = max(u, l)

    The upper bound is its mirror image. `theta` is left at u, for the caller to project.
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
    """Keep what lies beyond a bound between 0 and kp xi, for gains that change: beyond = clip(beyond, 0 .. kp xi).

    A large violation that vanishes by itself takes the controller far below the bound, by kp times its fall. With a
    kp that has become small since, the integral would need very long to come back.
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
    if type(weight) is float and weight == 1.0:  # nothing is smoothed
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
    """A tensor over leading dimensions, with the trailing ones of `like` added to broadcast over."""
    return each.view(*each.shape, *(1,) * (like.dim() - each.dim()))


def widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype that state and arithmetic have: never narrower than float32."""
    return torch.promote_types(dtype, torch.float32)


def as_list(tensors: Tensors) -> list[torch.Tensor]:
    """One tensor or many, as a list."""
    return tensors if isinstance(tensors, list) else [tensors]


def _one_each(gain: Gain, theta: Tensors) -> bool:
    """Whether there is a gain for every multiplier, and not one for all or for a row of them."""
    return (
        isinstance(gain, torch.Tensor)
        and isinstance(theta, torch.Tensor)
        and gain.numel() == theta.numel() > 1
    )
