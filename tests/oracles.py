"""What each dual optimizer should do, written from its formula in a few plain lines on Python numbers.

`lr` is a factor on the step size per step, for schedules.
"""

from __future__ import annotations

import math
from itertools import repeat


def nupi(errors, theta, ki, kp, nu, init, form="velocity", lr=None):
    """Lines 2 and 3 of Algorithm 1, or the recursion they unroll to; no projection."""
    path, xi, start, total = [], None, theta, 0.0
    for t, (e, rate) in enumerate(zip(errors, lr or repeat(1.0), strict=False)):
        if t == 0:
            xi = {"zero": 0.0, "error": e, "ema": (1 - nu) * e, "bumpless": e}[init]
            before = e if init == "bumpless" else 0.0
            start = theta - rate * kp * before
        else:
            before, xi = xi, nu * xi + (1 - nu) * e
        total += rate * ki * e
        if form == "velocity":
            theta = theta + rate * ki * e + rate * kp * (xi - before)
        else:
            theta = start + rate * kp * xi + total
        path.append(theta)
    return path


def momentum(errors, theta, lr_, beta, gamma, lr=None):
    """Algorithm 2 of the paper, line by line."""
    path, phi = [], 0.0
    for e, rate in zip(errors, lr or repeat(1.0), strict=False):
        before, phi = phi, beta * phi + rate * lr_ * e
        theta = theta + phi + beta * gamma * (phi - before)
        path.append(theta)
    return path


def pid(errors, theta, ki, kp, kd, nu, one_sided, lr=None):
    path, integral, xi = [], theta, errors[0]
    for e, rate in zip(errors, lr or repeat(1.0), strict=False):
        before, xi = xi, nu * xi + (1 - nu) * e
        change = max(xi - before, 0.0) if one_sided else xi - before
        integral += rate * ki * e
        path.append(integral + rate * kp * xi + rate * kd * change)
    return path


def adam(errors, theta, lr_, b1=0.9, b2=0.999, eps=1e-8, lr=None):
    path, m, v = [], 0.0, 0.0
    for t, (e, rate) in enumerate(zip(errors, lr or repeat(1.0), strict=False), start=1):
        m, v = b1 * m + (1 - b1) * e, b2 * v + (1 - b2) * e * e
        theta = theta + rate * lr_ * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
        path.append(theta)
    return path
