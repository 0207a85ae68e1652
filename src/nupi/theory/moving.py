"""The nonzero eigenvalues of a quadratic program, separated from the exact zeros; for `spectrum`.

With ki != 0 the null space of

    U = [[H, A^T], [A (kp H - ki I), kp A A^T]]

is known before any eigenvalue is computed: U (x, mu) = 0 means A x = 0 and H x + A^T mu = 0. So it has one dimension
for each linear dependence of constraints (A^T mu = 0), and one for each direction of the null space of A along which H
is flat. So a slow eigenvalue is never mistaken for a zero, even on stiff problems.
"""

from __future__ import annotations

import math

import torch

from nupi.theory.quadratic import Matrix, as_matrices

EPS = torch.finfo(torch.float64).eps


def system_matrix(h: Matrix, a: Matrix, ki: float, kp: float) -> torch.Tensor:
    """The matrix U, from the Hessian (n, n) and the constraint matrix (c, n), or two numbers for n = c = 1."""
    _check_gains(ki, kp)
    hessian, constraint = as_matrices(h, a)
    return _system(hessian, constraint, ki, torch.tensor(kp, dtype=torch.float64))


def eigenpairs(h: Matrix, a: Matrix, ki: float, kp: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The eigenvalues of -U without the structural zeros, and their eigenvectors in columns."""
    _check_gains(ki, kp)
    hessian, constraint = as_matrices(h, a)
    # Restricted to their range, constraints are linearly independent; the nonzero eigenvalues are the same.
    constraint = torch.linalg.svd(constraint)[0][:, : _rank(constraint)].T @ constraint
    free = _null_space(constraint)  # directions of x that change no constraint
    zeros = free.shape[1] - _rank(free.T @ hessian @ free, scale=hessian)
    if ki == 0.0:  # then mu' = kp A x', and all that moves is x' under H + kp A^T A
        zeros = sum(constraint.shape) - _rank(hessian + kp * constraint.T @ constraint)
    values, vectors = torch.linalg.eig(
        -_system(hessian, constraint, ki, torch.tensor(kp, dtype=torch.float64))
    )
    kept = values.abs().argsort(descending=True)[: len(values) - zeros]
    return values[kept], vectors[:, kept]


def without_rounding(values: torch.Tensor) -> torch.Tensor:
    """The same eigenvalues, with zeros for real and imaginary parts that are only rounding errors.

    Rounding moves a simple eigenvalue by EPS times the largest. It splits a double one by the square root of that,
    relative to its own size. Smaller imaginary parts are set to zero.
    """
    sizes = values.abs()
    noise = EPS * sizes.max() / sizes
    real = torch.where(values.real.abs() > (1e-9 + 64.0 * noise) * sizes, values.real, 0.0)
    imaginary = torch.where(values.imag.abs() > 64.0 * noise.sqrt() * sizes, values.imag, 0.0)
    return torch.complex(real, imaginary)


def rates(hessian: torch.Tensor, constraint: torch.Tensor, ki: float, kp: torch.Tensor) -> torch.Tensor:
    """The slowest rate for each of many kp, for matrices without zero eigenvalues, as `felt` returns them."""
    values: torch.Tensor = torch.linalg.eigvals(_system(hessian, constraint, ki, kp))
    return values.real.amin(dim=-1)


def felt(hessian: torch.Tensor, constraint: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """H and A restricted to the directions of x that change constraints, with H diagonal; and to the range of A.

    Of directions with equal curvature, as many are kept as change the constraints independently.
    """
    if not bool(constraint.any()):
        raise ValueError("a is zero: the constraints do not depend on x, so no gain can damp them")
    curvatures, directions = torch.linalg.eigh(hessian)
    noise = 64.0 * len(hessian) * EPS * float(curvatures.abs().max())
    edges = (curvatures.diff() > noise).nonzero().flatten() + 1
    kept, slopes = [], []
    for group in torch.tensor_split(torch.arange(len(curvatures)), edges):
        left, sizes, _ = torch.linalg.svd(constraint @ directions[:, group], full_matrices=False)
        real = sizes > 1e-12 * torch.linalg.matrix_norm(constraint, 2)
        slopes.append(left[:, real] * sizes[real])
        kept.append(curvatures[group].mean().repeat(int(real.sum())))
    steepness = torch.cat(slopes, dim=1)
    left = torch.linalg.svd(steepness)[0][:, : _rank(steepness)]
    return torch.diag(torch.cat(kept)), left.T @ steepness


def _check_gains(ki: float, kp: float) -> None:
    for name, gain in (("ki", ki), ("kp", kp)):
        if not math.isfinite(gain):
            raise ValueError(f"{name}={gain} must be finite")


def _system(hessian: torch.Tensor, constraint: torch.Tensor, ki: float, kp: torch.Tensor) -> torch.Tensor:
    """U for each `kp`; its shape is that of `kp` and two more dimensions."""
    gain, n = kp[..., None, None], len(hessian)
    steering = constraint @ (gain * hessian - ki * torch.eye(n, dtype=hessian.dtype))
    top = torch.cat([hessian, constraint.T], dim=1).expand(*kp.shape, -1, -1)
    below = torch.cat([steering, gain * (constraint @ constraint.T)], dim=-1)
    return torch.cat([top, below], dim=-2)


def _rank(matrix: torch.Tensor, scale: torch.Tensor | None = None) -> int:
    """The number of singular values above the rounding error of the largest one (of `scale`, if given)."""
    if matrix.numel() == 0:
        return 0
    largest = torch.linalg.matrix_norm(matrix if scale is None else scale, 2)
    return int((torch.linalg.svdvals(matrix) > 8.0 * max(matrix.shape) * EPS * largest).sum())


def _null_space(matrix: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the null space, in columns."""
    basis: torch.Tensor = torch.linalg.svd(matrix)[2][_rank(matrix) :].T
    return basis
