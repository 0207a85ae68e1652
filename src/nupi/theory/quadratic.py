"""Check the matrices of a quadratic program, min x^T H x / 2 + c^T x subject to A x = b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

Matrix: TypeAlias = torch.Tensor | Sequence[Sequence[float]] | float


def as_matrices(h: Matrix, a: Matrix) -> tuple[torch.Tensor, torch.Tensor]:
    """H of shape (n, n) and A of shape (c, n) in double precision; numbers mean n = 1 and c = 1."""
    hessian, constraint = (_two_dimensional(name, value) for name, value in (("h", h), ("a", a)))
    rows, n = hessian.shape
    if rows != n:
        raise ValueError(f"h must be square, but its shape is {tuple(hessian.shape)}")
    if not torch.allclose(hessian, hessian.T):
        raise ValueError("h must be symmetric: take (h + h.T) / 2")
    if constraint.shape[1] != n:
        raise ValueError(
            f"a must have one row per constraint and {n} columns, one per variable, "
            f"but its shape is {tuple(constraint.shape)}"
        )
    return hessian, constraint


def _two_dimensional(name: str, value: Matrix) -> torch.Tensor:
    matrix = torch.as_tensor(value, dtype=torch.float64)
    if matrix.ndim == 0:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise ValueError(f"{name} must be a matrix or a number, but its shape is {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name} must be finite, but it holds nan or inf")
    return matrix
