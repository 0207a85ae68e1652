"""A whole grid of gains at once: `nupi.sweep` beside the same runs in JAX, in numba, and with Cooper.

The sweep, JAX and numba each run a grid in their own process (`benchmarks.sweep_rivals`). The first call includes
tracing and compiling, but not imports. CPU seconds are shown beside the clock, because on a machine with other work
each program gets another share of the time.

Cooper runs a sample of the settings of the paper's map, one after another, in float64 like the sweep; its multipliers
must be the same. Throughput is settings x steps per second.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from time import perf_counter

import cooper
import torch

import nupi
from benchmarks.sweep_rivals import GRIDS, measure
from benchmarks.timing import Row, at_least, at_most
from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import DUALS, MAP_KP, PRIMAL, STEPS, run_sweep, step_sizes
from nupi.solve.methods import read_dual, read_primal
from nupi.solve.native import Native
from nupi.solve.problem import Problem as Posed
from nupi.solve.program import Program, Setting

NUS = (-0.5, 0.0, 0.9)
BOUND = 1.25
COOPER_STEPS = 300  # fewer than in the sweep, because rates are compared
FULL = 1_000
WIDTHS = (1, 10, 100, 1_000, 4_000)
SAMPLE = ((0.0, 5.0, 9), (0.0, 10.0, 12), (-0.5, 10.0, 11), (0.9, 5.0, 5))  # nu, kp, index of ki: not chaotic
FLOPS = 2_000  # multiplications and additions of one setting's step: two products with 70 x 5, and updates


class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc]
    """The SVM as Cooper wants it."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = x
        self.margin = cooper.Constraint(
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=70, dtype=torch.float64),
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
        )

    def compute_cmp_state(self) -> cooper.CMPState:
        """Objective and violations at the current point."""
        state = cooper.ConstraintState(violation=svm().violations(self.x))
        return cooper.CMPState(loss=svm().objective(self.x), observed_constraints={self.margin: state})


def with_cooper(ki: float, kp: float, nu: float, steps: int) -> torch.Tensor:
    """One setting, alternating with the dual first, as in the sweep."""
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    problem = Problem(x)
    gain = torch.tensor(kp / ki, dtype=torch.float64)  # a float would become a float32
    with warnings.catch_warnings():  # it warns of a negative nu, which the paper's grid has
        warnings.simplefilter("ignore")
        dual = cooper.optim.nuPI(problem.dual_parameters(), lr=ki, Kp=gain, ema_nu=nu, maximize=True)
    optimizer = cooper.optim.AlternatingDualPrimalOptimizer(
        cmp=problem, primal_optimizers=PRIMAL([x]), dual_optimizers=dual
    )
    for _ in range(steps):
        optimizer.roll()
    multipliers: torch.Tensor = problem.margin.multiplier.weight.detach()
    return multipliers


def rate(settings: int) -> float:
    """Settings x steps per second of the replayed steps of a grid of nuPI settings, the best of three."""
    problem = svm()
    posed = Posed(problem.objective, torch.zeros(5, dtype=torch.float64), problem.violations)
    gains = torch.logspace(-4, -2, settings, dtype=torch.float64).tolist()
    runs = [Setting(*read_dual(nupi.NuPI, {"ki": ki, "kp": 1.0}, "dual")) for ki in gains]
    best = 0.0
    with Native(torch.get_num_threads(), 10**6) as native:
        program = Program(posed, runs, read_primal(PRIMAL), native=native)
        program.first()
        program.advance(10)
        for _ in range(3):
            start = perf_counter()
            program.advance(200)
            best = max(best, 200 * settings / (perf_counter() - start))
    return best


def peak() -> float:
    """Floating-point operations per second of all cores on large float64 products, the best of five."""
    size = 1024
    a = torch.randn(size, size, dtype=torch.float64)
    best = 0.0
    for _ in range(5):
        start = perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * size**3 / (perf_counter() - start))
    return best


def beside_jax_and_numba() -> list[Row]:
    """The sweep over each rival, on the clock and in CPU seconds, with compiling and without."""
    rows = []
    for grid, make in GRIDS.items():
        ours, theirs = measure("nupi", grid), measure("jax", grid)
        label = (make.__doc__ or grid).rstrip(".")
        for when, words in (("first", "with compiling"), ("again", "compiled before")):
            cpu = ours[f"cpu {when}"] / theirs[f"cpu {when}"]
            note = f"{ours[when]:.1f} s and {theirs[when]:.1f} s; CPU seconds {cpu:.2f}"
            rows.append(at_most(f"time over JAX's, {words}: {label}", ours[when] / theirs[when], BOUND, note))
        if grid == "map":  # on one core, so compare CPU seconds
            scalar = measure("numba", grid)
            note = f"CPU seconds {ours['cpu first']:.1f} and {scalar['cpu first']:.1f}"
            ratio = ours["cpu first"] / scalar["cpu first"]
            rows.append(Row(f"CPU seconds over numba's, with compiling: {label}", ratio, "", None, note))
    return rows


def run() -> list[Row]:
    """The map of the paper beside Cooper; then the rate against the size of the grid, and the limit."""
    sizes = step_sizes()
    grid = {"nu": NUS, "kp": MAP_KP, "ki": sizes}
    # The first call of each includes imports. This init and form are the defaults of Cooper's nuPI.
    check = run_sweep(None, grid, dual=DUALS["nupi-zero"], steps=COOPER_STEPS)
    with_cooper(sizes[0], 1.0, 0.0, 10)
    start = perf_counter()
    run_sweep(None, grid, dual=nupi.NuPI)
    ours = perf_counter() - start
    theirs, gap = 0.0, 0.0
    for nu, kp, index in SAMPLE:
        start = perf_counter()
        multipliers = with_cooper(sizes[index], kp, nu, COOPER_STEPS)
        theirs += perf_counter() - start
        swept = check.at(nu=nu, kp=kp, ki=sizes[index]).multipliers["inequality"]
        gap = max(gap, float((swept - multipliers).abs().max() / multipliers.abs().max()))
    count = len(NUS) * len(MAP_KP) * len(sizes)
    our_rate, their_rate = count * STEPS / ours, len(SAMPLE) * COOPER_STEPS / theirs
    times = f"map in {ours:.1f} s: {our_rate / 1e6:.2f}M settings x steps a second; Cooper {their_rate / 1e3:.2f}k"
    rows = [
        at_least(
            f"throughput over Cooper's, {count} settings x {STEPS:,} steps", our_rate / their_rate, 500, times
        ),
        at_most(
            "their multipliers: largest relative gap / 1e-9",
            gap / 1e-9,
            1,
            f"{len(SAMPLE)} settings, {COOPER_STEPS} steps",
        ),
    ]
    rates = {settings: rate(settings) for settings in WIDTHS}
    for few, many in pairwise(WIDTHS):
        note = f"{rates[few] / 1e6:.2f}M and {rates[many] / 1e6:.2f}M settings x steps a second"
        what, ratio = f"cost per setting, {few} settings / {many} settings", rates[many] / rates[few]
        # With a thousand settings or more, all cores are busy.
        rows.append(at_least(what, ratio, 1, note) if many <= FULL else Row(what, ratio, "", None, note))
    limit = peak() / FLOPS
    best = max(rates.values())
    rows.append(
        Row(
            "arithmetic limit / best throughput",
            limit / best,
            "",
            None,
            f"{limit / 1e6:.1f}M, at {FLOPS / 1e3:g} kflop each and the speed of a large product on all cores",
        )
    )
    return beside_jax_and_numba() + rows
