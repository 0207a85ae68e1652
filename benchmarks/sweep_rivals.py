"""What a user would write instead of `nupi.sweep`: the same runs in JAX and in numba, each in its own process.

    python -m benchmarks.sweep_rivals PROGRAM GRID

prints the seconds of the first call, with tracing and compiling, and of a second one; and a digest of the multipliers.
All three programs take the same steps: nuPI in its conditional form with a bumpless start, and gradient descent with
momentum.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import nupi

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAMS = ("nupi", "jax", "numba")


@dataclass(frozen=True)
class Grid:
    """A problem min 1/2 |w|^2 with 1 - A x <= 0, where w is x without its last `free` entries; and a grid of gains."""

    matrix: torch.Tensor
    free: int
    nu: Sequence[float]
    kp: Sequence[float]
    ki: Sequence[float]
    lr: float
    steps: int


def _svm_grid(nu: Sequence[float], kp: Sequence[float], ki: Sequence[float], steps: int) -> Grid:
    from nupi.paper.svm.problem import svm

    return Grid(svm().rows, 1, nu, kp, ki, 1e-3, steps)


def paper_map() -> Grid:
    """The paper's heat maps: 1,080 settings, 5,000 steps."""
    from nupi.paper.svm.runs import MAP_KP, STEPS, step_sizes

    return _svm_grid((-0.5, 0.0, 0.9), MAP_KP, step_sizes(), STEPS)


def many() -> Grid:
    """100,000 settings, 1,000 steps."""
    ki = torch.logspace(-5, -3, 500, dtype=torch.float64).tolist()
    return _svm_grid(torch.linspace(-0.5, 0.9, 10).tolist(), torch.linspace(0, 10, 20).tolist(), ki, 1_000)


def large() -> Grid:
    """1,000 variables and 200 constraints: 192 settings, 500 steps."""
    matrix = torch.randn(200, 1_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 30
    ki = torch.logspace(-3, -1, 64, dtype=torch.float64).tolist()
    return Grid(matrix, 0, (0.0,), (0.0, 0.5, 1.0), ki, 1e-2, 500)


GRIDS: dict[str, Callable[[], Grid]] = {"map": paper_map, "many": many, "large": large}


def with_nupi(grid: Grid) -> Any:
    """The sweep."""
    matrix, kept = grid.matrix, grid.matrix.shape[1] - grid.free
    found = nupi.sweep(
        lambda x: 0.5 * x[:kept].square().sum(),
        torch.zeros(matrix.shape[1], dtype=torch.float64),
        inequality=lambda x: 1 - matrix @ x,
        grid={"nu": grid.nu, "kp": grid.kp, "ki": grid.ki},
        primal=partial(torch.optim.SGD, lr=grid.lr, momentum=0.9),
        steps=grid.steps,
        progress=False,
    )
    return found.multipliers["inequality"].reshape(-1, matrix.shape[0]).numpy()


def with_jax(grid: Grid) -> Any:
    """`vmap` over `lax.scan`, jitted."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    config: Any = jax.config
    config.update("jax_enable_x64", True)
    A = jnp.array(grid.matrix.numpy())
    kept = jnp.arange(A.shape[1]) < A.shape[1] - grid.free

    def one(nu: Any, kp: Any, ki: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, v, theta, xi, beyond = carry
            e = 1 - A @ x
            u = theta + beyond + (ki + kp * (1 - nu)) * e - kp * (1 - nu) * xi
            xi = xi + (1 - nu) * (e - xi)
            beyond, theta = jnp.minimum(u - ki * jnp.minimum(e, 0), 0), jnp.maximum(u, 0)
            v = 0.9 * v + jnp.where(kept, x, 0) - A.T @ theta
            return (x - grid.lr * v, v, theta, xi, beyond), None

        x, m = jnp.zeros(A.shape[1]), jnp.zeros(A.shape[0])
        return jax.lax.scan(step, (x, x, m, 1 - A @ x, m), None, length=grid.steps)[0][2]

    settings = np.array(list(product(grid.nu, grid.kp, grid.ki))).T
    return np.asarray(_jitted(jax, one, grid)(*map(jnp.asarray, settings)))


_KEPT: dict[int, Any] = {}


def _jitted(jax: Any, one: Any, grid: Grid) -> Any:
    """JAX compiles a function object once, so a second call must pass the same object."""
    return _KEPT.setdefault(id(grid), jax.jit(jax.vmap(one)))


def _numba_kernel() -> Any:
    import numba
    import numpy as np

    @numba.njit(fastmath=True)
    def run(A: Any, free: int, settings: Any, lr: float, steps: int) -> Any:
        m, n = A.shape
        found = np.zeros((len(settings), m))
        for s in range(len(settings)):
            nu, kp, ki = settings[s]
            x, v, theta, xi, beyond = np.zeros(n), np.zeros(n), found[s], np.ones(m), np.zeros(m)
            g = np.zeros(n)
            for _ in range(steps):
                for j in range(n):
                    g[j] = x[j] if j < n - free else 0.0
                for i in range(m):
                    e = 1.0
                    for j in range(n):
                        e -= A[i, j] * x[j]
                    u = theta[i] + beyond[i] + (ki + kp * (1 - nu)) * e - kp * (1 - nu) * xi[i]
                    xi[i] += (1 - nu) * (e - xi[i])
                    beyond[i] = min(u - ki * min(e, 0.0), 0.0)
                    theta[i] = max(u, 0.0)
                    for j in range(n):
                        g[j] -= A[i, j] * theta[i]
                for j in range(n):
                    v[j] = 0.9 * v[j] + g[j]
                    x[j] -= lr * v[j]
        return found

    return run


def with_numba(grid: Grid) -> Any:
    """Scalar loops, compiled, on one core."""
    import numpy as np

    if "numba" not in _NUMBA:
        _NUMBA["numba"] = _numba_kernel()
    settings = np.array(list(product(grid.nu, grid.kp, grid.ki)))
    return _NUMBA["numba"](grid.matrix.numpy(), grid.free, settings, grid.lr, grid.steps)


_NUMBA: dict[str, Any] = {}
RUN: dict[str, Callable[[Grid], Any]] = {"nupi": with_nupi, "jax": with_jax, "numba": with_numba}


def measure(program: str, grid: str) -> dict[str, float]:
    """Seconds of a first and a second call in a fresh process, which has imported everything and compiled nothing."""
    with tempfile.TemporaryDirectory() as empty:  # an empty cache of compiled steps
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sweep_rivals", program, grid],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": empty},
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    import numpy as np

    program, name = sys.argv[1:]
    grid = GRIDS[name]()
    # Imports aside, of all that the first call would import.
    for module in ("nupi.solve.sweep", "torch._dynamo") if program == "nupi" else (program,):
        importlib.import_module(module)
    times, busy = [], []
    for _ in range(2):
        start, before = perf_counter(), _cpu()
        multipliers = RUN[program](grid)
        times.append(perf_counter() - start)
        busy.append(_cpu() - before)
    finite = np.isfinite(multipliers).all(1)
    middle = float(np.median(multipliers[finite].sum(1)))
    found = {"first": times[0], "again": times[1], "cpu first": busy[0], "cpu again": busy[1]}
    print(json.dumps(found | {"middle": middle, "finite": int(finite.sum())}))


def _cpu() -> float:
    """CPU seconds of this process and its compilers; with other work on the machine, more reliable than the clock."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
