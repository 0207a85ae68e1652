"""The spectrum of nuPI on an equality-constrained quadratic program, in continuous time.

For min x^T H x / 2 + c^T x subject to A x = b, with H positive semi-definite, the oscillator is linear:
[x, mu]'' + U [x, mu]' = 0 with

    U = [[H, A^T], [A (kp H - ki I), kp A A^T]]

The eigenvalues of -U say everything: real parts are rates (negative: decay), imaginary parts oscillation.
With one variable of curvature h and one constraint of slope a,

    lambda = (-(h + kp a^2) +- sqrt((h + kp a^2)^2 - 4 a^2 ki)) / 2

and critical damping is at kp* = (-h + 2 |a| sqrt(ki)) / a^2, where both are -|a| sqrt(ki).
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import torch

from nupi.theory.quadratic import Matrix, as_matrices

# Rounding splits a double eigenvalue by the square root of the machine's precision, and a bit more.
TOLERANCE = 1e-6


class Regime(enum.Enum):
    """How the system moves; directions with eigenvalue zero stand still and have no part in it."""

    DIVERGENT = "divergent"
    DIVERGENT_OSCILLATION = "divergent with oscillation"
    UNDAMPED = "undamped"
    """Oscillates, or drifts, neither growing nor decaying: a bilinear game at kp = 0."""
    UNDERDAMPED = "underdamped"
    CRITICALLY_DAMPED = "critically damped"
    OVERDAMPED = "overdamped"


class Mode(NamedTuple):
    """One eigenvalue of -U and what it means."""

    eigenvalue: complex
    damping_ratio: float
    """-Re / |eigenvalue|: 1 without oscillation, 0 for one that never decays, negative for growth."""
    settling_time: float
    """The time after which 2% of it is left; infinite without decay."""
    period: float
    """The time of one oscillation; infinite without any."""


def system_matrix(h: Matrix, a: Matrix, ki: float, kp: float) -> torch.Tensor:
    """U, from the Hessian (n, n) and the constraint matrix (c, n), or two numbers for n = c = 1."""
    hessian, constraint = as_matrices(h, a)
    n = len(hessian)
    steering = constraint @ (kp * hessian - ki * torch.eye(n, dtype=hessian.dtype))
    top = torch.cat([hessian, constraint.T], dim=1)
    return torch.cat([top, torch.cat([steering, kp * constraint @ constraint.T], dim=1)])


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
    moving = _moving(eigenvalues(h, a, ki, kp))
    return [_mode(complex(value)) for value in moving.tolist()]


def regime(h: Matrix, a: Matrix, ki: float, kp: float) -> Regime:
    """Which of the regimes a choice of gains puts the system in.

    Critical damping is where the slowest eigenvalue is double, nothing oscillates, and the two eigenvectors
    have become one (eigenvalues that merely coincide keep directions of their own). It is a single point:
    within about 1e-6 of it in kp, rounding decides.

    Example:
        >>> [regime(1.0, -1.0, ki=1.0, kp=kp).value for kp in (-4.0, -2.0, 0.0, 1.0, 2.0)]
        ['divergent', 'divergent with oscillation', 'underdamped', 'critically damped', 'overdamped']
    """
    values, vectors = torch.linalg.eig(-system_matrix(h, a, ki, kp))
    scale = values.abs().max().clamp(min=1e-300)
    moves = values.abs() > TOLERANCE * scale
    values, vectors = values[moves] / scale, vectors[:, moves]
    if len(values) == 0:
        return Regime.UNDAMPED
    oscillates = values.imag.abs() > TOLERANCE
    slowest = values[values.real.argmax()]
    if slowest.real > TOLERANCE:
        growing = values.real > TOLERANCE
        return Regime.DIVERGENT_OSCILLATION if bool((oscillates & growing).any()) else Regime.DIVERGENT
    if slowest.real > -TOLERANCE:
        return Regime.UNDAMPED
    if bool(oscillates.any()):
        return Regime.UNDERDAMPED
    directions = vectors[:, (values - slowest).abs() < TOLERANCE**0.5]
    merged = bool(torch.linalg.svdvals(directions).min() < TOLERANCE**0.5)
    return Regime.CRITICALLY_DAMPED if merged else Regime.OVERDAMPED


def decay_rate(h: Matrix, a: Matrix, ki: float, kp: float) -> float:
    """The rate at which the slowest moving direction decays: -max Re; negative when the system diverges."""
    moving = _moving(eigenvalues(h, a, ki, kp))
    return -float(moving.real.max()) if len(moving) else 0.0


def critical_points(h: float, a: float, ki: float) -> tuple[float, float]:
    """Both kp at which the two eigenvalues of one variable and one constraint coincide.

    kp = (-h -+ 2 |a| sqrt(ki)) / a^2, where the eigenvalues are +|a| sqrt(ki), growing, and -|a| sqrt(ki).

    Example:
        >>> critical_points(h=1.0, a=-1.0, ki=1.0)
        (-3.0, 1.0)
    """
    _check_positive("ki", ki)
    if a == 0.0:
        raise ValueError("a=0: the constraint does not depend on x, so no gain can damp it")
    spread = 2.0 * abs(a) * math.sqrt(ki)
    return (-h - spread) / a**2, (-h + spread) / a**2


def critical_kp(h: Matrix, a: Matrix, ki: float) -> float:
    """The kp of critical damping: in closed form for two numbers, else the kp with the fastest slowest rate.

    Directions of x that no constraint feels decay at a rate of their own, whatever kp is; they are left out.

    Example:
        >>> critical_kp(1.0, -1.0, ki=1.0)
        1.0
        >>> critical_kp([[1.0, 0.0], [0.0, 1.0]], [[3.0, 4.0]], ki=1.0)  # the slope is 5
        0.36
    """
    if isinstance(h, (int, float)) and isinstance(a, (int, float)):
        return critical_points(h, a, ki)[1]
    return _fastest_kp(h, a, ki)


def damping_ratio(h: float, a: float, ki: float, kp: float) -> float:
    """(h + kp a^2) / (2 |a| sqrt(ki)): below 1 it oscillates, at 1 it is critical, above 1 overdamped."""
    _check_positive("ki", ki)
    return (h + kp * a**2) / (2.0 * abs(a) * math.sqrt(ki))


def damping_ratio_of(pair: torch.Tensor) -> float:
    """The damping ratio of two eigenvalues as one oscillator's: -(sum) / (2 sqrt(product)).

    Example:
        >>> damping_ratio_of(torch.tensor([-1.0, -4.0]))
        1.25
    """
    first, second = (complex(value) for value in pair.tolist())
    product = (first * second).real
    if not product > 0.0:
        raise ValueError(f"pair={pair.tolist()} is no oscillator's: the product must be positive")
    return -(first + second).real / (2.0 * math.sqrt(product))


def _fastest_kp(h: Matrix, a: Matrix, ki: float) -> float:
    """Maximize the slowest rate: a scan, since it has several peaks, then a bounded search at the best."""
    from scipy.optimize import minimize_scalar

    _check_positive("ki", ki)
    hessian, constraint = _felt(*as_matrices(h, a))
    curvatures, slopes = torch.linalg.eigvalsh(hessian), torch.linalg.svdvals(constraint)
    slopes = slopes[slopes > TOLERANCE * slopes.max()]
    # Where one direction of each curvature and slope would be critical: the best for all is often among them.
    ends = [critical_points(float(c), float(s), ki)[1] for c in curvatures[[0, -1]] for s in slopes[[0, -1]]]
    margin = max(ends) - min(ends) + 2.0 * math.sqrt(ki) / float(slopes.max())
    low, high = min(ends) - margin, max(ends) + margin

    def rate(kp: float) -> float:
        return decay_rate(hessian, constraint, ki, kp)

    grid = torch.linspace(low, high, 401, dtype=torch.float64)
    best = max(map(rate, grid.tolist()))
    # Beyond it a rate falls with ki / kp, so no kp much larger than ki / best can do better.
    if best > 0.0 and 4.0 * ki / best > high > 0.0:
        beyond = torch.logspace(math.log10(high), math.log10(4.0 * ki / best), 401, dtype=torch.float64)
        grid = torch.cat([grid, beyond[1:]])
    at = max(range(len(grid)), key=lambda i: rate(float(grid[i])))
    around = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)]))
    found = minimize_scalar(
        lambda kp: -rate(float(kp)), bounds=around, method="bounded", options={"xatol": 1e-12}
    )
    return max((float(found.x), float(grid[at])), key=rate)


def _felt(hessian: torch.Tensor, constraint: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both matrices on the smallest subspace that holds the constraints' gradients and that H keeps."""
    basis = _orthonormal(constraint.T)
    if basis.shape[1] == 0:
        raise ValueError("a is zero: the constraints do not depend on x, so no gain can damp them")
    while (wider := _orthonormal(torch.cat([basis, hessian @ basis], dim=1))).shape[1] > basis.shape[1]:
        basis = wider
    return basis.T @ hessian @ basis, constraint @ basis


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    left, sizes, _ = torch.linalg.svd(columns, full_matrices=False)
    kept: torch.Tensor = left[:, sizes > TOLERANCE * sizes.max()]
    return kept


def _mode(value: complex) -> Mode:
    size = abs(value)
    decay = -value.real if abs(value.real) > TOLERANCE * size else 0.0
    turn = abs(value.imag) if abs(value.imag) > TOLERANCE * size else 0.0
    return Mode(
        eigenvalue=value,
        damping_ratio=decay / size,
        settling_time=math.log(50.0) / decay if decay > 0.0 else math.inf,
        period=2.0 * math.pi / turn if turn > 0.0 else math.inf,
    )


def _moving(values: torch.Tensor) -> torch.Tensor:
    return values[values.abs() > TOLERANCE * values.abs().max()]


def _check_positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise ValueError(f"{name}={value}: critical damping needs {name} > 0")
