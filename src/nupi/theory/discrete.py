"""Discrete time, as in a real run: one step of nuPI and gradient descent on a quadratic program, as a matrix.

For min x^T H x / 2 + c^T x subject to A x = b, one round of SGD (with momentum) and nuPI is linear in the state
(x, v, mu, xi), measured from the solution; v is SGD's momentum buffer:

    dual:    e = A x;  mu and xi by the nuPI rule
    primal:  v = momentum v + (H x + A^T mu);  x = x - lr v

The powers of its matrix give the whole run; the spectral radius is the factor by which the error shrinks in a step.
The order of the two lines is the update scheme, as in a training loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from nupi import rule
from nupi.optim.checks import check_range, check_smoothing
from nupi.theory.quadratic import Matrix, as_matrices

if TYPE_CHECKING:
    from collections.abc import Sequence

Scheme: TypeAlias = Literal["alternating", "simultaneous", "primal-first"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


def iteration_matrix(
    h: Matrix,
    a: Matrix,
    *,
    lr: float,
    ki: float | torch.Tensor,
    kp: float | torch.Tensor = 0.0,
    nu: float = 0.0,
    momentum: float = 0.0,
    scheme: Scheme = "alternating",
) -> torch.Tensor:
    """The matrix M of one round, state_{t+1} = M state_t, on the state (x, v, mu, xi), of shape (2n + 2c, 2n + 2c).

    For min x^T H x / 2 + c^T x subject to A x = b, measured from the solution, and v the momentum buffer of SGD:

        e = A x,  xi' = nu xi + (1 - nu) e,  mu' = mu + ki e + kp (xi' - xi)
        v' = momentum v + (H x + A^T mu'),  x' = x - lr v'

    Args:
        h: the Hessian of the objective, (n, n), or a number.
        a: the constraint matrix, (c, n), or a number.
        lr: the primal step size, that of `torch.optim.SGD`.
        ki: the integral gain; a tensor of gains gives a matrix for each.
        kp: the proportional gain; broadcasts against `ki`.
        nu: the smoothing.
        momentum: SGD's momentum.
        scheme: "alternating" moves the multipliers first, "simultaneous" both at once, "primal-first" x first.

    Example:
        >>> iteration_matrix(1.0, 1.0, lr=0.5, ki=0.1)[0]  # the new x
        tensor([ 0.4500,  0.0000, -0.5000,  0.0000], dtype=torch.float64)
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme={scheme!r}: choose one of {', '.join(SCHEMES)}")
    check_range("lr", lr, 0.0, math.inf, closed=False, fix="it is the step size of the primal SGD")
    check_range("momentum", momentum, 0.0, 1.0, closed=True, fix="it is the momentum of the primal SGD")
    check_smoothing("nu", nu)
    for name, gain in (("ki", ki), ("kp", kp)):
        if not bool(torch.as_tensor(gain).isfinite().all()):
            raise ValueError(f"{name} must be finite, but {gain!r} came")
    hessian, constraint = as_matrices(h, a)
    c, n = constraint.shape
    integral, proportional = (torch.as_tensor(g, dtype=torch.float64)[..., None, None] for g in (ki, kp))
    batch = (integral + proportional).shape[:-2]
    # The step is linear, so applying it to the identity gives its matrix.
    identity = torch.eye(2 * (n + c), dtype=torch.float64).expand(*batch, -1, -1)
    x, v, mu, xi = (part.clone() for part in torch.split(identity, [n, n, c, c], dim=-2))

    def ascend() -> None:
        rule.velocity_(mu, xi, constraint @ x, integral, proportional, 1.0 - nu)

    def descend(multipliers: torch.Tensor) -> None:
        v.mul_(momentum).add_(hessian @ x + constraint.T @ multipliers)
        x.sub_(lr * v)

    if scheme == "alternating":
        ascend()
        descend(mu)
    elif scheme == "simultaneous":
        before = mu.clone()
        ascend()
        descend(before)
    else:
        descend(mu)
        ascend()
    return torch.cat([x, v, mu, xi], dim=-2)


def spectral_radius(matrix: torch.Tensor) -> torch.Tensor:
    """The largest modulus of the eigenvalues. Below 1 the iteration converges, by this factor in each step.

    rho(M) = max over the eigenvalues of |lambda|.

    If constraints are linearly dependent, a multiplier is undetermined, and the radius is never below 1.

    Example:
        >>> spectral_radius(torch.diag(torch.tensor([0.5, -0.9])))
        tensor(0.9000)
    """
    values: torch.Tensor = torch.linalg.eigvals(matrix)
    return values.abs().amax(dim=-1)


def stability_region(
    h: Matrix,
    a: Matrix,
    *,
    lr: float,
    ki: torch.Tensor | Sequence[float],
    kp: torch.Tensor | Sequence[float],
    nu: float = 0.0,
    momentum: float = 0.0,
    scheme: Scheme = "alternating",
) -> torch.Tensor:
    """The spectral radius over a grid of gains, of shape (len(ki), len(kp)). Gains are stable where it is below 1.

    Entry (i, j) is rho(M(ki_i, kp_j)), with M of `iteration_matrix` and rho = max |lambda|.

    Example:
        >>> grid = torch.tensor([0.0, 1.0])
        >>> stability_region(0.0, 1.0, lr=0.1, ki=torch.tensor([0.1]), kp=grid) < 1  # a bilinear game
        tensor([[False,  True]])
    """
    along, across = (torch.as_tensor(gains, dtype=torch.float64) for gains in (ki, kp))
    for name, gains in (("ki", along), ("kp", across)):
        if gains.ndim != 1:
            raise ValueError(f"{name} must be a list of gains, but its shape is {tuple(gains.shape)}")
    matrices = iteration_matrix(
        h, a, lr=lr, ki=along[:, None], kp=across[None, :], nu=nu, momentum=momentum, scheme=scheme
    )
    return spectral_radius(matrices)
