"""The nuPI rule. Every other part of the library calls it; the formula stands nowhere else.

The error e_t of a multiplier is its constraint violation. With gains ki and kp and smoothing nu:

    xi_t        = nu xi_{t-1} + (1 - nu) e_t
    theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})      velocity form
    theta_{t+1} = theta_0 + ki sum(e_0 .. e_t) + kp xi_t       positional form (Algorithm 1)

The two forms are one controller until a projection bites: what the velocity form has integrated *is* the
projected multiplier, while the positional form keeps its integral apart (see `project_integral_`).

The first step. Four initial conditions are in use, and they are four controllers. Each is the ordinary
step with a choice of two things: which xi_{-1} to start from, and the weight of e_0 in xi_0 (every later
weight is 1 - nu). `opening` gives both.

| init       | meaning             | xi_{-1} | weight | first step            | after it              |
| ---------- | ------------------- | ------- | ------ | --------------------- | --------------------- |
| `zero`     | xi_0 = 0            | 0       | 0      | ki e_0                | a kick kp(1 - nu) e_1 |
| `error`    | xi_0 = e_0          | 0       | 1      | (ki + kp) e_0         |                       |
| `ema`      | xi_0 = (1 - nu) e_0 | 0       | 1 - nu | (ki + kp(1 - nu)) e_0 |                       |
| `bumpless` | xi_{-1} = e_0       | e_0     | 1 - nu | ki e_0                | no kick               |

Functions here work in place on plain tensors of one dtype, allocate nothing that grows with them (but for
`project_integral_`, and kp weight where both are tensors), and never look at a value. A gain is a number or a
tensor that broadcasts to `theta`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch

Gain: TypeAlias = "float | torch.Tensor"
Init: TypeAlias = Literal["zero", "error", "ema", "bumpless"]
Form: TypeAlias = Literal["velocity", "positional"]

INITS: tuple[Init, ...] = get_args(Init)
FORMS: tuple[Form, ...] = get_args(Form)


def opening(init: Init, nu: Gain) -> tuple[float, Gain]:
    """The initial condition, as the share of e_0 in xi_{-1} and the weight of e_0 in xi_0.

    >>> opening("error", 0.9)
    (0.0, 1.0)
    """
    if init == "zero":
        return 0.0, 0.0
    if init == "error":
        return 0.0, 1.0
    if init == "ema":
        return 0.0, 1.0 - nu
    if init == "bumpless":
        return 1.0, 1.0 - nu
    raise ValueError(f"init={init!r} is not an initial condition of nuPI; choose one of {', '.join(INITS)}")


def open_(
    theta: torch.Tensor,
    xi: torch.Tensor,
    integral: torch.Tensor | None,
    e: torch.Tensor,
    kp: Gain,
    nu: Gain,
    init: Init,
) -> Gain:
    """Set the initial condition before the first step, and return the weight to take that step with.

    Args:
        theta: the multipliers as they start, theta_0.
        xi: becomes xi_{-1}.
        integral: of the positional form, or None; becomes theta_0 - kp xi_{-1}.
        e: the first error, e_0.
        kp: the proportional gain.
        nu: the smoothing.
        init: one of `INITS`.
    """
    share, weight = opening(init, nu)
    if share:
        xi.copy_(e)
    else:
        xi.zero_()
    if integral is not None:
        integral.copy_(theta)
        subtract_scaled_(integral, xi, kp)
    return weight


def velocity_(
    theta: torch.Tensor, xi: torch.Tensor, e: torch.Tensor, ki: Gain, kp: Gain, weight: Gain
) -> None:
    """One step of the velocity form; `weight` is 1 - nu, or the opening's on the first step.

    theta += (ki + kp weight) e - kp weight xi;  xi = lerp(xi, e, weight)
    """
    damping = kp * weight
    if not isinstance(ki, torch.Tensor) and not isinstance(damping, torch.Tensor):
        theta.add_(e, alpha=ki + damping).add_(xi, alpha=-damping)
    elif _as_large(ki, theta) or _as_large(damping, theta):
        # The sum of the gains would be a temporary as large as theta.
        add_scaled_(theta, e, ki)
        add_scaled_(theta, e, damping)
        subtract_scaled_(theta, xi, damping)
    else:
        add_scaled_(theta, e, ki + damping)
        subtract_scaled_(theta, xi, damping)
    xi.lerp_(e, weight)


def positional_(
    theta: torch.Tensor,
    xi: torch.Tensor,
    integral: torch.Tensor,
    e: torch.Tensor,
    ki: Gain,
    kp: Gain,
    weight: Gain,
) -> None:
    """One step of the positional form; `integral` starts at theta_0 - kp xi_{-1}.

    integral += ki e;  xi = lerp(xi, e, weight);  theta = integral + kp xi
    """
    add_scaled_(integral, e, ki)
    xi.lerp_(e, weight)
    theta.copy_(integral)
    add_scaled_(theta, xi, kp)


def project_integral_(theta: torch.Tensor, integral: torch.Tensor) -> None:
    """Anti-windup: where the projection to theta >= 0 bites, the integral may not stay negative either.

    Call it before `theta` is clamped. Without it a positional multiplier that has spent long at zero must
    first pay back all it has integrated there. Elsewhere the integral is left alone, so that until a
    projection bites both forms give the same multipliers.
    """
    integral.copy_(torch.where(theta < 0, integral.clamp(min=0), integral))


def integral_(theta: torch.Tensor, e: torch.Tensor, ki: Gain) -> None:
    """Gradient ascent, the rule at kp = 0: theta += ki e; there is no xi to keep."""
    add_scaled_(theta, e, ki)


def velocity_foreach_(
    theta: list[torch.Tensor],
    xi: list[torch.Tensor],
    e: list[torch.Tensor],
    ki: float,
    kp: float,
    weight: float,
) -> None:
    """`velocity_` over many tensors with the same three gains, bit for bit."""
    damping = kp * weight
    torch._foreach_add_(theta, e, alpha=ki + damping)
    torch._foreach_add_(theta, xi, alpha=-damping)
    torch._foreach_lerp_(xi, e, weight)


def positional_foreach_(
    theta: list[torch.Tensor],
    xi: list[torch.Tensor],
    integral: list[torch.Tensor],
    e: list[torch.Tensor],
    ki: float,
    kp: float,
    weight: float,
) -> None:
    """`positional_` over many tensors with the same three gains, bit for bit."""
    torch._foreach_add_(integral, e, alpha=ki)
    torch._foreach_lerp_(xi, e, weight)
    torch._foreach_copy_(theta, integral)
    torch._foreach_add_(theta, xi, alpha=kp)


def integral_foreach_(theta: list[torch.Tensor], e: list[torch.Tensor], ki: float) -> None:
    """`integral_` over many tensors with the same gain, bit for bit."""
    torch._foreach_add_(theta, e, alpha=ki)


def add_scaled_(target: torch.Tensor, x: torch.Tensor, scale: Gain) -> None:
    """`target += scale * x` without a temporary."""
    if isinstance(scale, torch.Tensor):
        target.addcmul_(x, scale)
    else:
        target.add_(x, alpha=scale)


def subtract_scaled_(target: torch.Tensor, x: torch.Tensor, scale: Gain) -> None:
    """`target -= scale * x` without a temporary."""
    if isinstance(scale, torch.Tensor):
        target.addcmul_(x, scale, value=-1)
    else:
        target.add_(x, alpha=-scale)


def _as_large(gain: Gain, theta: torch.Tensor) -> bool:
    """Whether there is a gain for every multiplier, and not one for all or for a row of them."""
    return isinstance(gain, torch.Tensor) and gain.numel() == theta.numel() > 1
