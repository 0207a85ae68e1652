"""The compiled step against torch's: the same sweep on both, over many expressions, rules and constraints."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi
from nupi.solve import native
from nupi.solve.native import build
from nupi.solve.native.operations import UnsupportedError

SGD = partial(torch.optim.SGD, lr=0.02, momentum=0.5)
X0 = torch.tensor([0.3, -0.7, 1.1, 0.2], dtype=torch.float64)
K = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)
GRID = {"ki": [0.01, 0.02, 0.05, 0.1, 0.2], "kp": [0.0, 0.5]}


@pytest.fixture(autouse=True, scope="module")
def _always_compiled():
    """The sweeps here are far too short for it to pay."""
    if build.compiler() is None:
        pytest.skip("there is no C compiler here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "COMPILING", 0.0)
        yield


def by_torch(monkeypatch_context, **arguments):
    with monkeypatch_context as patch:
        patch.setattr(native.Native, "serves", lambda *_: False)
        return nupi.sweep(**arguments)


def both(**arguments):
    """The same sweep, compiled and by torch."""
    arguments = {"x0": X0, "grid": GRID, "primal": SGD, "steps": 12, "progress": False} | arguments
    compiled = nupi.sweep(**arguments)
    return compiled, by_torch(pytest.MonkeyPatch.context(), **arguments)


def assert_alike(compiled, expected, tolerance=1e-10):
    assert compiled.engine == "native"
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance, equal_nan=True)
    close(compiled.x, expected.x)
    close(compiled.multipliers, expected.multipliers)
    close(compiled.objective, expected.objective)
    close(compiled.history, expected.history)
    assert torch.equal(compiled.status, expected.status)
    assert torch.equal(compiled.steps, expected.steps)


POINTWISE = {
    "exp": torch.exp,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "abs": torch.abs,
    "softplus": torch.nn.functional.softplus,
    "sqrt": lambda x: (x.square() + 1).sqrt(),
    "log": lambda x: (x.square() + 1).log(),
    "powers": lambda x: x**3 - 0.1 * x**2 + (x.square() + 1) ** -0.5 + (x.square() + 1) ** 1.7,
    "clamp": lambda x: x.clamp(-0.5, 0.4) + x.clamp(min=-0.1) + x.clamp(max=0.9),
    "where": lambda x: torch.where(x > 0.1, x.square(), -x),
    "larger": lambda x: torch.maximum(x, x.flip(0)) - torch.minimum(x, 0.2 * x),
    "ratio": lambda x: x / (1 + x.abs()) + 2 / (3 + x.square()),
    "huber": lambda x: torch.nn.functional.smooth_l1_loss(x, torch.ones_like(x), reduction="none"),
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "masks": lambda x: x * ((x > 0) & (x < 1)).to(x.dtype),
    "erf": torch.erf,
    "atan2": lambda x: torch.atan2(x, 1 + x.square()),
}
SHAPES = {
    "slice": lambda x: x[1:],
    "reverse": lambda x: x.flip(0)[::2],
    "matrix": lambda x: (x.reshape(2, 2).T @ x.reshape(2, 2)).reshape(-1),
    "outer": lambda x: torch.outer(x, x)[:2].reshape(-1),
    "rows": lambda x: x.reshape(2, 2).sum(1),
    "columns": lambda x: x.reshape(2, 2).mean(0),
    "extremes": lambda x: torch.stack([x.amax(), x.amin(), x.max(), x.min()]),
    "product": lambda x: K @ x,
    "transposed": lambda x: x[:3] @ K,
    "joined": lambda x: torch.cat([x, x[:1] * 2]),
    "stacked": lambda x: torch.stack([x, x.square()], dim=-1),
    "chosen": lambda x: x[torch.tensor([0, 2, 2, 3])],
    "selected": lambda x: x[0] * x[1:],
    "broadcast": lambda x: x.reshape(2, 2) + x[:2],
    "affine": lambda x: torch.nn.functional.linear(x, K, K[:, 0]),
    "norm": lambda x: torch.linalg.vector_norm(x).reshape(1),
    "softmax": lambda x: x.softmax(0),
    "spread": lambda x: torch.stack([x.logsumexp(0), x.var(), x.std()]),
    "diagonal": lambda x: torch.outer(x, x).diagonal(),
    "stack of matrices": lambda x: torch.bmm(x.reshape(2, 2, 1), x.reshape(2, 1, 2)).reshape(-1),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 1)),
}


@pytest.mark.parametrize("functions", [POINTWISE, SHAPES], ids=["pointwise", "shapes"])
def test_functions_are_torchs(functions):
    """All in one sweep, each a constraint of its own: one program to compile, and every result has a name."""
    compiled, expected = both(
        objective=lambda x: (
            (x - 1).square().sum() + sum(0.01 * f(x).square().mean() for f in functions.values())
        ),
        equality={name: lambda x, f=function: 0.01 * (f(x) - 0.2) for name, function in functions.items()},
        history=["objective", "violations", "multipliers", "x"],
    )
    assert_alike(compiled, expected)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(POINTWISE)), min_size=1, max_size=3), st.sampled_from(sorted(SHAPES)))
def test_compositions_are_torchs(names, shape):
    def function(x):
        for name in names:
            x = POINTWISE[name](x).tanh()
        return SHAPES[shape](x)

    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(), equality=lambda x: function(x) - 0.1
    )
    assert_alike(compiled, expected)


BAND = {"gap": (nupi.Band(4, tolerance=0.1), lambda x: x - 0.2)}
CAPPED = {
    "low": (nupi.Inequality(4, upper=0.3, restart=True), lambda x: 0.5 - x),
    "sum": (nupi.Equality(), lambda x: x.sum().reshape(1) - 1),
}


@pytest.mark.parametrize("constraints", [BAND, CAPPED], ids=["band", "capped"])
@pytest.mark.parametrize(
    ("form", "init"),
    [("velocity", "zero"), ("positional", "ema"), ("conditional", "error"), ("conditional", "bumpless")],
)
def test_every_form_and_start_of_nupi_is_torchs(constraints, form, init):
    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(),
        constraints=constraints,
        grid={"ki": [0.05, 0.3], "kp": [0.0, 1.0], "nu": [-0.3, 0.0, 0.9], "restart": [False, True]},
        dual=partial(nupi.NuPI, form=form, init=init),
        steps=25,
        history=["multipliers"],
        every=6,
    )
    assert_alike(compiled, expected)


DUALS = {
    "momentum": (partial(nupi.UnifiedMomentum, beta=0.3, gamma=0.5), {"lr": [0.05, 0.1]}),
    "pid": (partial(nupi.PID, kp=0.5, kd=0.1), {"ki": [0.05, 0.1, 0.2]}),
    "sgd": (partial(torch.optim.SGD, maximize=True, momentum=0.3, nesterov=True), {"lr": [0.05, 0.1]}),
    "adam": (partial(torch.optim.Adam, maximize=True), {"lr": [0.05, 0.1]}),
}


@pytest.mark.parametrize("name", DUALS)
@pytest.mark.parametrize(
    "primal",
    [SGD, partial(torch.optim.Adam, lr=0.05), partial(torch.optim.SGD, lr=0.02, momentum=0.5, nesterov=True)],
)
def test_every_dual_and_primal_optimizer_is_torchs(name, primal):
    dual, grid = DUALS[name]
    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(),
        constraints=CAPPED,
        dual=dual,
        grid=grid,
        primal=primal,
        steps=30,
    )
    assert_alike(compiled, expected)


def test_points_of_several_leaves_and_methods_in_one_grid():
    x0 = {"w": torch.full((2, 3), 0.1, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    data = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
    compiled, expected = both(
        objective=lambda x: x["w"].square().sum() + x["b"].square(),
        x0=x0,
        inequality={"a": lambda x: 1 - data @ x["w"].T - x["b"]},
        equality={"b": lambda x: x["w"].sum() - x["b"]},
        dual={"nuPI": nupi.NuPI, "Adam": partial(torch.optim.Adam, maximize=True)},
        grid=[
            {"dual": ["nuPI"], "ki": [0.01, 0.02, 0.03], "form": ["velocity", "positional"]},
            {"dual": ["Adam"], "lr": torch.linspace(0.01, 0.1, 9)},
        ],
        history=["x", "violations"],
        every=5,
    )
    assert_alike(compiled, expected)


def test_float32_is_torchs_too():
    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(), x0=X0.float(), inequality=lambda x: 0.5 - x.exp()
    )
    assert compiled.x.dtype == torch.float32
    assert_alike(compiled, expected, tolerance=1e-5)


def test_nan_spreads_as_in_torch_and_to_no_neighbour():
    """The square root of a negative number, reached by the large gains alone."""
    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(),
        equality=lambda x: torch.maximum((2 + x.sum()).sqrt(), x.clamp(min=-1).sum()) - 3,
        grid={"ki": [0.01, 5.0, 0.02, 50.0, 0.03]},
        steps=400,
    )
    assert_alike(compiled, expected, tolerance=1e-8)
    assert (compiled.status == nupi.Status.DIVERGED).any()
    assert (compiled.status != nupi.Status.DIVERGED).any()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_depend_neither_on_threads_nor_on_neighbours(threads):
    arguments = {
        "objective": lambda x: (x - 1).square().sum() + x.sin().sum(),
        "x0": X0,
        "inequality": lambda x: K @ x.exp() - 1,
        "grid": {"ki": torch.logspace(-3, -1, 67), "kp": [0.0, 0.3]},
        "primal": SGD,
        "steps": 300,
        "progress": False,
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        several = nupi.sweep(**arguments)
    finally:
        torch.set_num_threads(before)
    one = nupi.sweep(**arguments, chunk=1 + 2 * threads)
    assert torch.equal(several.x, one.x)
    assert torch.equal(several.multipliers["inequality"], one.multipliers["inequality"])


def test_a_large_product_is_torchs():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(37, 131, generator=generator, dtype=torch.float64)
    compiled, expected = both(
        objective=lambda x: x.square().sum(),
        x0=torch.zeros(131, dtype=torch.float64),
        inequality=lambda x: 1 - matrix @ x,
        grid={"ki": torch.linspace(0.001, 0.01, 29)},
        primal=partial(torch.optim.SGD, lr=0.01),
    )
    assert_alike(compiled, expected)


def test_what_has_no_native_form_is_run_by_torch_and_says_so():
    found = nupi.sweep(
        lambda x: (x - 1).square().sum(),
        X0,
        equality=lambda x: torch.linalg.inv(x.diag() + 3 * torch.eye(4, dtype=torch.float64)).sum() - 1,
        grid=GRID,
        steps=5,
    )
    assert found.engine.startswith("torch (")
    assert found.at(ki=0.1).engine == found.engine


def test_without_a_compiler_torch_runs_the_step(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    found = nupi.sweep(lambda x: x.square().sum(), X0, equality=lambda x: x - 1, grid=GRID, steps=5)
    assert found.engine == "torch (there is no C compiler)"


def test_a_short_sweep_is_not_compiled(monkeypatch):
    monkeypatch.setattr(native, "COMPILING", 0.3)
    arguments = {"equality": lambda x: x - 1, "grid": GRID}
    short = nupi.sweep(lambda x: x.square().sum(), X0, **arguments, steps=5)
    assert short.engine == "torch (too short to be worth compiling)"
    assert nupi.sweep(lambda x: x.square().sum(), X0, **arguments, steps=5000).engine == "native"


def test_a_compiler_that_fails_is_no_error(monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'version 1'; test \"$1\" = --version\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(UnsupportedError, match="could not compile"):
        build.load("int f(void) { return 1; }")


def test_a_program_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_folder", lambda: tmp_path)
    made = []
    real = build._compile
    monkeypatch.setattr(build, "_compile", lambda *given: (made.append(1), real(*given)))
    assert build.load("int three(void) { return 3; }").three() == 3
    assert build.load("int three(void) { return 3; }").three() == 3
    assert made == [1]


def test_the_solution_is_the_known_one():
    """The nearest point to (2, 1) in the unit disc: x = (2, 1) / sqrt(5), with multiplier sqrt(5) - 1."""
    goal = torch.tensor([2.0, 1.0], dtype=torch.float64)
    found = nupi.sweep(
        lambda x: 0.5 * (x - goal).square().sum(),
        torch.zeros(2, dtype=torch.float64),
        inequality=lambda x: 0.5 * (x.square().sum() - 1),
        grid={"ki": [0.1, 0.3], "kp": [1.0, 2.0]},
        primal=partial(torch.optim.SGD, lr=0.1),
        steps=3000,
        tol=1e-9,
    )
    assert found.engine == "native"
    assert (found.status == nupi.Status.CONVERGED).all()
    torch.testing.assert_close(found.x, (goal / math.sqrt(5)).expand(2, 2, 2))
    torch.testing.assert_close(
        found.multipliers["inequality"], torch.full((2, 2), math.sqrt(5) - 1, dtype=torch.float64)
    )


def test_penalties_are_torchs():
    compiled, expected = both(
        objective=lambda x: (x - 1).square().sum(),
        constraints=CAPPED | BAND,
        grid={"ki": [0.05, 0.1], "kp": [0.0, 1.0], "penalty": [None, 0.3, 2.0]},
    )
    assert_alike(compiled, expected)
