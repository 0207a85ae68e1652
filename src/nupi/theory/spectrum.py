"""The spectrum of nuPI on an equality-constrained quadratic program, in continuous time.

For min x^T H x / 2 + c^T x subject to A x = b, with H positive semi-definite, the oscillator is linear:
[x, mu]'' + U [x, mu]' = 0 with

    U = [[H, A^T], [A (kp H - ki I), kp A A^T]]

The eigenvalues of -U describe the motion: real parts are rates (negative: decay), imaginary parts are frequencies.
With one variable of curvature h and one constraint of slope a,

    lambda = (-(h + kp a^2) +- sqrt((h + kp a^2)^2 - 4 a^2 ki)) / 2

and critical damping is at kp* = (-h + 2 |a| sqrt(ki)) / a^2, where both eigenvalues are -|a| sqrt(ki).
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import torch

from nupi.theory import moving
from nupi.theory.moving import system_matrix as system_matrix
from nupi.theory.quadratic import Matrix, as_matrices

NEAR = 1e-3  # eigenvalues and eigenvectors this close count as one that rounding has split


class Regime(enum.Enum):
    """How the system moves. Directions with eigenvalue zero do not move, and do not count.

    With one variable of curvature h and one constraint of slope a, the damping ratio decides:

        zeta = (h + kp a^2) / (2 |a| sqrt(ki))

    It is below 0 if the system diverges, 0 if it is undamped, between 0 and 1 underdamped, 1 critically damped and
    above 1 overdamped.

    Example:
        >>> for kp in (0.0, 1.0, 2.0, 3.0):  # a bilinear game: h = 0, a = 1
        ...     print(kp, regime(0.0, 1.0, ki=1.0, kp=kp).value)
        0.0 undamped
        1.0 underdamped
        2.0 critically damped
        3.0 overdamped
        >>> regime(0.0, 1.0, ki=1.0, kp=2.0) is Regime.CRITICALLY_DAMPED
        True
    """

    DIVERGENT = "divergent"
    DIVERGENT_OSCILLATION = "divergent with oscillation"
    UNDAMPED = "undamped"
    """Oscillates or drifts, without growth or decay: a bilinear game at kp = 0."""
    UNDERDAMPED = "underdamped"
    CRITICALLY_DAMPED = "critically damped"
    OVERDAMPED = "overdamped"


class Mode(NamedTuple):
    """One eigenvalue of -U, with its damping ratio, settling time and period."""

    eigenvalue: complex
    damping_ratio: float
    """-Re / |eigenvalue|: 1 without oscillation, 0 for one that never decays, negative for growth."""
    settling_time: float
    """The time until 2% of the mode is left; infinite without decay."""
    period: float
    """The time of one oscillation; infinite without any."""


def eigenvalues(h: Matrix, a: Matrix, ki: float, kp: float) -> torch.Tensor:
    """The eigenvalues of -U, slowest decay (or fastest growth) first.

    Example:
        >>> eigenvalues(1.0, -1.0, ki=1.0, kp=3.0).real
        tensor([-0.2679, -3.7321], dtype=torch.float64)
    """
    values: torch.Tensor = torch.linalg.eigvals(-system_matrix(h, a, ki, kp))
    order = torch.argsort(values.real, descending=True, stable=True)
    return values.index_select(0, order)


def modes(h: Matrix, a: Matrix, ki: float, kp: float) -> list[Mode]:
    """Every eigenvalue with its damping ratio, settling time and period; zero eigenvalues are left out."""
    values = moving.eigenpairs(h, a, ki, kp)[0]
    slowest_first = values[torch.argsort(values.real, descending=True, stable=True)]
    clean = moving.without_rounding(slowest_first)
    return [_mode(*both) for both in zip(slowest_first.tolist(), clean.tolist(), strict=True)]


def regime(h: Matrix, a: Matrix, ki: float, kp: float) -> Regime:
    """The regime of the system with these gains.

    The eigenvalues lambda of -U decide, with U = [[H, A^T], [A (kp H - ki I), kp A A^T]]: positive real parts diverge,
    imaginary parts oscillate.

    At critical damping the slowest eigenvalue is double, nothing oscillates, and the two eigenvectors are one (equal
    eigenvalues with different eigenvectors do not count). This is a single kp: within about 1e-6 of it, more on a stiff
    problem, rounding decides.

    Example:
        >>> [regime(1.0, -1.0, ki=1.0, kp=kp).value for kp in (-4.0, -2.0, 0.0, 1.0, 2.0)]
        ['divergent', 'divergent with oscillation', 'underdamped', 'critically damped', 'overdamped']
    """
    values, vectors = moving.eigenpairs(h, a, ki, kp)
    if len(values) == 0:
        return Regime.UNDAMPED
    values = moving.without_rounding(values)
    oscillates, slowest = values.imag != 0.0, values[values.real.argmax()]
    if slowest.real > 0.0:
        growing = values.real > 0.0
        return Regime.DIVERGENT_OSCILLATION if bool((oscillates & growing).any()) else Regime.DIVERGENT
    if slowest.real == 0.0:
        return Regime.UNDAMPED
    if bool(oscillates.any()):
        return Regime.UNDERDAMPED
    directions = vectors[:, (values - slowest).abs() < NEAR * slowest.abs()]
    merged = bool(torch.linalg.svdvals(directions).min() < NEAR)
    return Regime.CRITICALLY_DAMPED if merged else Regime.OVERDAMPED


def decay_rate(h: Matrix, a: Matrix, ki: float, kp: float) -> float:
    """The rate at which the slowest direction decays, -max Re; negative if the system diverges."""
    values = moving.eigenpairs(h, a, ki, kp)[0]
    return -float(values.real.max()) if len(values) else 0.0


def critical_points(h: float, a: float, ki: float) -> tuple[float, float]:
    """Both kp at which the two eigenvalues of one variable and one constraint coincide.

    kp = (-h -+ 2 |a| sqrt(ki)) / a^2. The eigenvalues are then +|a| sqrt(ki), which grows, and -|a| sqrt(ki).

    Example:
        >>> critical_points(h=1.0, a=-1.0, ki=1.0)
        (-3.0, 1.0)
    """
    _check_positive("ki", ki)
    as_matrices(h, a)  # refuses what is not finite
    if a == 0.0:
        raise ValueError("a=0: the constraint does not depend on x, so no gain can damp it")
    spread = 2.0 * abs(a) * math.sqrt(ki)
    return (-h - spread) / a**2, (-h + spread) / a**2


def critical_kp(h: Matrix, a: Matrix, ki: float) -> float:
    """The kp of critical damping: in closed form for numbers, else the kp whose slowest direction decays fastest.

    For one variable of curvature h and one constraint of slope a,

        kp* = (-h + 2 |a| sqrt(ki)) / a^2

    Directions of x that change no constraint are left out: their rate does not depend on kp.

    Example:
        >>> critical_kp(1.0, -1.0, ki=1.0)
        1.0
        >>> critical_kp([[1.0, 0.0], [0.0, 1.0]], [[3.0, 4.0]], ki=1.0)  # the slope is 5
        0.36
    """
    _check_positive("ki", ki)
    if isinstance(h, (int, float)) and isinstance(a, (int, float)):
        return critical_points(h, a, ki)[1]
    return _fastest_kp(h, a, ki)


def damping_ratio(h: float, a: float, ki: float, kp: float) -> float:
    """(h + kp a^2) / (2 |a| sqrt(ki)): below 1 it oscillates, at 1 it is critical, above 1 overdamped."""
    _check_positive("ki", ki)
    return (h + kp * a**2) / (2.0 * abs(a) * math.sqrt(ki))


def damping_ratio_of(pair: torch.Tensor) -> float:
    """The damping ratio of an oscillator with these two eigenvalues: -(sum) / (2 sqrt(product)).

    Example:
        >>> damping_ratio_of(torch.tensor([-1.0, -4.0]))
        1.25
    """
    first, second = (complex(value) for value in pair.tolist())
    product = (first * second).real
    if not product > 0.0:
        raise ValueError(
            f"pair={pair.tolist()} does not belong to an oscillator: the product must be positive"
        )
    return -(first + second).real / (2.0 * math.sqrt(product))


def _fastest_kp(h: Matrix, a: Matrix, ki: float) -> float:
    """Maximize the slowest rate. It has several maxima, so first a scan, then a bounded search near the best few.

    Returns the best kp of all tried, including 0 and the critical kp of each single direction.
    """
    from scipy.optimize import minimize_scalar

    hessian, constraint = moving.felt(*as_matrices(h, a))
    curvatures, alone = torch.diagonal(hessian), torch.linalg.vector_norm(constraint, dim=0)
    slopes = torch.cat([torch.linalg.svdvals(constraint)[[0, -1]], alone[[0, -1]]])
    # The critical kp of each direction alone; the best for all is often among them.
    pairs = [*zip(curvatures, alone, strict=True), *((c, s) for c in curvatures for s in slopes)]
    own = sorted({0.0, *(critical_points(float(c), float(s), ki)[1] for c, s in pairs)})
    margin = 2.0 * math.sqrt(ki) / float(slopes.min())
    # Below `lowest` the trace of U is negative, and something grows.
    low = max(own[0] - margin, -float(curvatures.sum() / alone.square().sum()))
    sizes = [abs(kp) for kp in own if kp] + [margin]
    spread = _logspace(min(sizes) / 100.0, 10.0 * max(sizes))
    grid = _sorted([torch.linspace(low, own[-1] + margin, 401).double(), spread, -spread, torch.tensor(own)])
    best = float(moving.rates(hessian, constraint, ki, grid).max())
    # Beyond it a rate falls with ki / kp, so no kp much larger than ki / best can do better.
    if best > 0.0 and 4.0 * ki / best > grid[-1]:
        grid = _sorted([grid, _logspace(float(grid[-1]), 4.0 * ki / best)])
    rates = moving.rates(hessian, constraint, ki, grid)

    def loss(kp: float) -> float:
        return -float(moving.rates(hessian, constraint, ki, torch.tensor([kp], dtype=torch.float64)))

    higher = torch.cat([torch.tensor([True]), rates[1:] >= rates[:-1]])
    peaks = (higher & torch.cat([rates[:-1] >= rates[1:], torch.tensor([True])])).nonzero().flatten()
    tried = grid[rates.argsort(descending=True)[:8]].tolist() + own
    for at in peaks[rates[peaks].argsort(descending=True)[:4]].tolist():
        around = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)]))
        tried.append(
            float(minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-12}).x)
        )
    fastest: float = min(tried, key=loss)
    return fastest


def _logspace(low: float, high: float) -> torch.Tensor:
    return torch.logspace(math.log10(low), math.log10(high), 201, dtype=torch.float64)


def _sorted(parts: list[torch.Tensor]) -> torch.Tensor:
    ascending: torch.Tensor = torch.cat([part.double() for part in parts]).unique()
    return ascending


def _mode(value: complex, clean: complex) -> Mode:
    return Mode(
        eigenvalue=value,
        damping_ratio=-clean.real / abs(value),
        settling_time=-math.log(50.0) / clean.real if clean.real < 0.0 else math.inf,
        period=2.0 * math.pi / abs(clean.imag) if clean.imag else math.inf,
    )


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name}={value}: critical damping needs {name} > 0, and finite")
