"""Theorem 1 read backwards: which momentum method, if any, a choice of nuPI gains is.

The way there is `nupi.as_nupi(alpha, beta, gamma)`. Solved for the momentum method, with beta = nu:

    alpha = ki (1 - nu);   gamma = 1 / (1 - nu) + kp / (ki nu)

UnifiedMomentum has gamma in [0, 1 / (1 - beta)], from Polyak's method to plain gradient ascent; for beta < 0 Nesterov's
gamma = 1 lies beyond that, and is counted in. So kp lies between Polyak's, which is -ki nu / (1 - nu), and zero, or for
nu < 0 Nesterov's, a little below. Everything else nuPI can do no momentum method can: above all kp > 0 with nu >= 0.
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
        """What the method is called."""
        if self.beta == 0.0:
            return "gradient ascent"
        return {0.0: "Polyak", 1.0: "Nesterov"}.get(self.gamma, "unified momentum")


def as_momentum(ki: float, kp: float, nu: float, *, tolerance: float = 1e-9) -> Momentum | None:
    """The momentum method that nuPI with these gains and `init="ema"` is, or None where it is none.

    With kp = 0 nu has no effect, and the method is gradient ascent. A negative ki, which would be a negative step
    size, and a beta outside (-1, 1) are no method's: `UnifiedMomentum` refuses them.

    Args:
        ki: the integral gain.
        kp: the proportional gain.
        nu: the smoothing.
        tolerance: how far gamma may miss an end of its range, or Nesterov's 1, by rounding.

    Example:
        >>> as_momentum(ki=1.0, kp=-0.5, nu=0.5)
        Momentum(alpha=0.5, beta=0.5, gamma=1.0)
        >>> as_momentum(ki=1.0, kp=1.0, nu=0.5) is None  # positive kp with nu > 0
        True
    """
    for name, value in (("ki", ki), ("kp", kp), ("nu", nu)):
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is no gain: it must be finite")
    if ki < 0.0:
        return None
    if kp == 0.0:
        return Momentum(ki, 0.0, 0.0)
    if nu == 0.0 or not -1.0 < nu < 1.0 or ki == 0.0:
        return None  # kp != 0 needs a beta other than 0 whose past is forgotten, and a step
    gamma = 1.0 / (1.0 - nu) + kp / (ki * nu)
    highest = max(1.0 / (1.0 - nu), 1.0)
    if not -tolerance <= gamma <= highest + tolerance:
        return None
    gamma = min(max(gamma, 0.0), highest)
    nearest = min((0.0, 1.0), key=lambda known: abs(known - gamma))
    if abs(nearest - gamma) <= tolerance:
        gamma = nearest
    return Momentum(ki * (1.0 - nu), nu, gamma)
