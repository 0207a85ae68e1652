"""What each dual optimizer should do, written from its formula in a few plain lines on Python numbers.

`lr` is a factor on the step size per step, for schedules. `low` and `high` bound the multiplier after every step.
"""

from __future__ import annotations

import math
from itertools import repeat


def within(theta, low, high):
    return min(max(theta, low), high)


def nupi(errors, theta, ki, kp, nu, init, form="velocity", lr=None, low=-math.inf, high=math.inf, raws=None):
    """Lines 2 and 3 of Algorithm 1, or the recursion they unroll to.

    `raws` is a list to take the positional form's values before they are projected.
    """
    path, xi, integral, u = [], None, theta, theta
    for t, (e, rate) in enumerate(zip(errors, lr or repeat(1.0), strict=False)):
        if t == 0:
            xi = {"zero": 0.0, "error": e, "ema": (1 - nu) * e, "bumpless": e}[init]
            before = e if init == "bumpless" else 0.0
            integral = theta - rate * kp * before
        else:
            before, xi = xi, nu * xi + (1 - nu) * e
        if form == "velocity":
            theta = within(theta + rate * ki * e + rate * kp * (xi - before), low, high)
        elif form == "positional":
            integral += rate * ki * e
            raw = integral + rate * kp * xi
            if raws is not None:
                raws.append(raw)
            theta = within(raw, low, high)
            if raw != theta:
                integral = within(integral, low, high)
        else:
            without = u + rate * kp * (xi - before)
            u = without + rate * ki * e
            if u < low and e < 0:  # integrate to the bound and no further
                u = min(without, low)
            elif u > high and e > 0:
                u = max(without, high)
            theta = within(u, low, high)
        path.append(theta)
    return path


def momentum(errors, theta, lr_, beta, gamma, lr=None, low=-math.inf, high=math.inf):
    """Algorithm 2 of the paper, line by line."""
    path, phi = [], 0.0
    for e, rate in zip(errors, lr or repeat(1.0), strict=False):
        before, phi = phi, beta * phi + rate * lr_ * e
        theta = within(theta + phi + beta * gamma * (phi - before), low, high)
        path.append(theta)
    return path


def pid(errors, theta, ki, kp, kd, nu, one_sided, lr=None, low=-math.inf, high=math.inf):
    path, integral, xi = [], theta, errors[0]
    for e, rate in zip(errors, lr or repeat(1.0), strict=False):
        before, xi = xi, nu * xi + (1 - nu) * e
        change = max(xi - before, 0.0) if one_sided else xi - before
        integral = within(integral + rate * ki * e, low, high)
        path.append(within(integral + rate * kp * xi + rate * kd * change, low, high))
    return path


def adam(errors, theta, lr_, b1=0.9, b2=0.999, eps=1e-8, lr=None):
    path, m, v = [], 0.0, 0.0
    for t, (e, rate) in enumerate(zip(errors, lr or repeat(1.0), strict=False), start=1):
        m, v = b1 * m + (1 - b1) * e, b2 * v + (1 - b2) * e * e
        theta = theta + rate * lr_ * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
        path.append(theta)
    return path
