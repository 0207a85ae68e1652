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


def self_tuned(errors, theta, steps, scale, lr=None, low=-math.inf, high=math.inf):
    """The identified rule of one constraint with `steps` below 256, line by line from docs/self_tuned.md."""
    path, w0, rate = [], 4 / steps, min(1, 32 / steps)
    fast, slow, keep = min(1, 8 * w0), min(0.5, w0 / 2), math.exp(-w0)
    u, xi, mean, last, level = theta, errors[0], errors[0], errors[0], theta
    change = cov = worst = most = b = sure = band = jump = 0.0
    boost, proven, s = 1.0, 0.0, [0.0] * 6
    e_fast = e_slow = trail = errors[0]
    m_fast = m_slow = lagging = theta

    def size(x):
        return abs(x) if low == -math.inf else max(x, 0.0)

    for t, (e, factor) in enumerate(zip(errors, lr or repeat(1.0), strict=False), start=1):
        # What is known of the violation.
        cov += ((e - last) * change - cov) / 32
        change, last = e - last, e
        jump = max(jump * math.exp(-min(1, w0)), abs(change))
        mean += rate * (e - mean)
        level += rate * (theta - level)
        trail, lagging = trail + min(1, w0) * (e - trail), lagging + min(1, w0) * (theta - lagging)
        sigma = math.sqrt(max(0.0, -cov / (1 - math.exp(-max(1, t - 2) / 32))))
        # What is known of the plant.
        before, cause = band, m_fast - m_slow
        e_fast += fast * (e - e_fast)
        e_slow += slow * (e_fast - e_slow)
        m_fast, m_slow = m_fast + fast * (theta - m_fast), m_slow + slow * (theta - m_slow)
        band = e_fast - e_slow
        y = before - band
        new = (before**2, before * cause, cause**2, y * before, y * cause, y**2)
        ee, em, mm, ye, ym, yy = s = [keep * old + x for old, x in zip(s, new, strict=True)]
        ee = max(ee, 1e-30)
        mm_left, ym_left, yy_left = mm - em**2 / ee, ym - ye * em / ee, yy - ye**2 / ee
        found = ym_left / max(mm_left, 1e-30)
        explained, n = ym_left * found, (1 - math.exp(-w0 * t)) / (1 - keep)
        grown, most = max(most, abs(mean)) / (most or max(abs(mean), 1e-30)), max(most, abs(mean))
        balance = scale / most if most else 0.0
        b = b * grown**2 if sure == 0 else b
        held = b if b > 0 else w0 * most**2 / scale
        fallen = held * math.exp(-min(3 * w0, 0.25))
        enough = explained > max(0.3, 8 / n) * max(0.0, yy_left - explained)
        stalled = abs(band) < 0.1 * size(mean) and size(mean) > 0.03 * most and t > steps / 8
        if enough and found > 0 and mm_left > 1e-6 * mm and n > 8 and mm > n * (balance / 25) ** 2:
            b, sure = max(found, fallen), explained / max(yy_left, 1e-30)
        else:
            b = fallen if stalled and abs(level) <= 16 * balance else held
            sure *= keep
        # The gains.
        left = max(0.0, size(mean) - 2 * sigma * math.sqrt(rate / (2 - rate)))
        worst = max(worst, left)
        risen = max(1.0, abs(level) / max(abs(lagging), 1e-30))
        if left > 0 and abs(trail) * risen**-0.25 > 1.001 * abs(mean) + sigma * math.sqrt(rate / (2 - rate)):
            proven = max(proven, abs(level))
        balance = max(balance, proven / 2)
        far = abs(level) / max(16 * balance, 1e-30)
        if t > steps and left > 0.03 * worst and far <= 1:
            boost = min(boost * math.exp(min(8 / steps, 0.1)), max(1, 0.25 * steps / 40))
        w = w0 * boost * (4 / 3) * min(1, 2 * t / steps)
        gone = -math.expm1(-1e-6)  # 1 - alpha: the curvature is not identified
        gain = max(1e-30, b * gone / 1e-6)
        quiet = 0.1 * gain * balance / max(sigma, 1e-30)
        kappa = min(0.7 * (1 - gone), max(quiet, (quiet**2 / 2) ** (1 / 3), 2 * w if left > 0 else 0.0))
        leap = 4 * 0.7 * balance if balance > 1e-11 else math.inf
        free = gain * leap / max(jump, 1e-3 * left, 1e-30)
        kappa = min(kappa, max(free, math.sqrt(free) / 2))
        kappa = kappa if sure > 0 else min(kappa, 0.1)
        w = min(w, (gone + kappa) / 2, 0.5)
        ki = w * max(0.0, gone + kappa - w) / ((1 - w) * gain * (1 + far**2))
        ki = min(ki, leap / max(jump, left, 1e-30)) if b > 0 else 0.0
        kp = kappa / gain if b > 0 else 0.0
        # The step: nuPI's, in its conditional form.
        moved = (1 - math.exp(-4 * kappa)) * (e - xi)
        xi += moved
        without = u + factor * kp * moved
        u = without + factor * ki * e
        if u < low and e < 0:
            u = min(without, low)
        elif u > high and e > 0:
            u = max(without, high)
        theta, reach = within(u, low, high), factor * kp * xi
        u = theta + within(u - theta, min(reach, 0.0), max(reach, 0.0))
        path.append(theta)
    return path
