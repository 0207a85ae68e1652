"""The inverse of Theorem 1: which momentum method, if any, equals nuPI with given gains.

Theorem 1 itself is `nupi.as_nupi(alpha, beta, gamma)`. Its inverse, with beta = nu:

    alpha = ki (1 - nu);   gamma = 1 / (1 - nu) + kp / (ki nu)

UnifiedMomentum has gamma in [0, 1 / (1 - beta)], from Polyak's method to plain gradient ascent. For beta < 0 Nesterov's
gamma = 1 is outside this range, and counts too. So kp is between Polyak's, -ki nu / (1 - nu), and zero, or for nu < 0
Nesterov's, a little below zero. For all other gains no momentum method does the same, above all for kp > 0 with
nu >= 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nupi.optim.momentum import as_nupi

__all__ = ["Momentum", "as_momentum", "as_nupi"]


class Momentum(NamedTuple):
    """The arguments of `nupi.UnifiedMomentum`; `nupi.as_nupi` gives the gains of the same method.

        phi_{t+1}   = beta phi_t + alpha e_t
        theta_{t+1} = theta_t + phi_{t+1} + beta gamma (phi_{t+1} - phi_t)

    Example:
        >>> nesterov = Momentum(alpha=0.5, beta=0.5, gamma=1.0)
        >>> nesterov.name
        'Nesterov'
        >>> as_nupi(*nesterov)
        {'ki': 1.0, 'kp': -0.5, 'nu': 0.5}
    """

    alpha: float
    beta: float
    gamma: float

    @property
    def name(self) -> str:
        """The name of the method."""
        if self.beta == 0.0:
            return "gradient ascent"
        return {0.0: "Polyak", 1.0: "Nesterov"}.get(self.gamma, "unified momentum")


def as_momentum(ki: float, kp: float, nu: float, *, tolerance: float = 1e-9) -> Momentum | None:
    """The momentum method that equals nuPI with these gains and `init="ema"`, or None if there is none.

    With kp = 0, nu has no effect and the method is gradient ascent. A negative ki (a negative step size) or a beta
    outside (-1, 1) gives None, because `UnifiedMomentum` refuses them.

    Args:
        ki: the integral gain.
        kp: the proportional gain.
        nu: the smoothing.
        tolerance: the largest rounding error of gamma at an end of its range, or at Nesterov's 1.

    Example:
        >>> as_momentum(ki=1.0, kp=-0.5, nu=0.5)
        Momentum(alpha=0.5, beta=0.5, gamma=1.0)
        >>> as_momentum(ki=1.0, kp=1.0, nu=0.5) is None  # positive kp with nu > 0
        True
    """
    for name, value in (("ki", ki), ("kp", kp), ("nu", nu)):
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} must be finite")
    if ki < 0.0:
        return None
    if kp == 0.0:
        return Momentum(ki, 0.0, 0.0)
    if nu == 0.0 or not -1.0 < nu < 1.0 or ki == 0.0:
        return None  # kp != 0 needs a beta in (-1, 1) other than 0, and ki > 0
    gamma = 1.0 / (1.0 - nu) + kp / (ki * nu)
    highest = max(1.0 / (1.0 - nu), 1.0)
    if not -tolerance <= gamma <= highest + tolerance:
        return None
    gamma = min(max(gamma, 0.0), highest)
    nearest = min((0.0, 1.0), key=lambda known: abs(known - gamma))
    if abs(nearest - gamma) <= tolerance:
        gamma = nearest
    return Momentum(ki * (1.0 - nu), nu, gamma)
