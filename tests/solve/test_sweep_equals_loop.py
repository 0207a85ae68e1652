"""A sweep is the loop over `Lagrangian` and the torch optimizers, only faster: to 1e-9 in float64."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.solve.problems import Known, corner, loop, mixed

import nupi
from nupi.rule import FORMS, INITS

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.8)
ADAM = partial(torch.optim.Adam, lr=0.03, betas=(0.8, 0.95))
STEPS = 30

DUALS = {
    "nupi": nupi.NuPI,
    "momentum": nupi.UnifiedMomentum,
    "pid": nupi.PID,
    "adam": partial(torch.optim.Adam, maximize=True),
    "sgd": partial(torch.optim.SGD, maximize=True),
}

# Every dual method of the library and of the paper, in one union of grids.
GRID = [
    {
        "dual": ["nupi"],
        "init": INITS,
        "form": FORMS,
        "nu": [-0.5, 0.0, 0.9],
        "kp": [0.0, 0.6],
        "restart": [False, True],
        "ki": [0.07],
    },
    {"dual": ["nupi"], "ki": [0.1], "kp": [-0.2], "lr": [0.5]},
    {"dual": ["momentum"], "lr": [0.02, 0.1], "beta": [-0.5, 0.0, 0.4], "gamma": [0.0, 0.5, 1.0]},
    {
        "dual": ["pid"],
        "ki": [0.05],
        "kp": [0.5],
        "kd": [0.0, 0.3],
        "nu": [0.0, 0.5],
        "one_sided": [True, False],
    },
    {"dual": ["adam"], "lr": [0.01, 0.1], "betas": [(0.9, 0.999), (0.5, 0.9)], "restart": [False, True]},
    {"dual": ["sgd"], "lr": [0.05], "momentum": [0.0, 0.5], "restart": [False, True]},
    {"dual": ["sgd"], "lr": [0.05], "momentum": [0.5], "nesterov": [True]},
]


@pytest.mark.parametrize("primal", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [pytest.param(corner, marks=pytest.mark.nightly), mixed])
def test_every_method_equals_the_loop(make, primal):
    problem = make()
    found = nupi.sweep(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        equality=problem.equality,
        dual=DUALS,
        grid=GRID,
        primal=primal,
        steps=STEPS,
        chunk=50,  # so that chunks cut through the blocks of methods
    )
    assert len(found.settings) > 120
    for row, setting in enumerate(found.settings):
        options = {name: value for name, value in setting.items() if name not in ("dual", "restart")}
        dual = partial(DUALS[setting["dual"]], **options)
        x, multipliers = loop(problem, dual, primal, STEPS, restart=setting.get("restart", False))
        torch.testing.assert_close(
            found.x[row], x, rtol=1e-9, atol=1e-9, msg=lambda m, s=setting: f"{s}\n{m}"
        )
        for name, values in multipliers.items():
            torch.testing.assert_close(found.multipliers[name][row], values, rtol=1e-9, atol=1e-9)


gain = st.floats(0.0, 0.3)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 2**31),
    ki=st.lists(gain, min_size=1, max_size=3, unique=True),
    kp=st.floats(-0.2, 1.0),
    nu=st.floats(-0.9, 0.9),
    form=st.sampled_from(FORMS),
    init=st.sampled_from(INITS),
)
def test_random_problems_equal_the_loop(seed, ki, kp, nu, form, init):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    offsets = torch.randn(4, generator=generator, dtype=torch.float64)
    problem = Known(
        lambda x: x.cosh().sum() + x[0] * x[1] / 4,
        torch.zeros(3, dtype=torch.float64),
        inequality=lambda x: (rows @ x).tanh() - offsets,
    )
    dual = partial(nupi.NuPI, kp=kp, nu=nu, form=form, init=init)
    found = nupi.sweep(
        problem.objective,
        problem.x0,
        inequality=problem.inequality,
        dual=dual,
        grid={"ki": ki},
        primal=SGD,
        steps=40,
    )
    for row, value in enumerate(ki):
        x, multipliers = loop(problem, partial(dual, ki=value), SGD, 40)
        torch.testing.assert_close(found.x[row], x, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            found.multipliers["inequality"][row], multipliers["inequality"], rtol=1e-9, atol=1e-9
        )


def test_a_dict_of_tensors_and_matrices_of_constraints():
    target = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 4
    x0 = {"w": torch.zeros(2, 3, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}

    def objective(x):
        return (x["w"] - target).square().sum() + x["b"].square()

    def bound(x):
        return x["w"] + x["b"] - 0.5

    arguments = {"inequality": {"bound": bound}, "primal": SGD, "steps": 80}
    found = nupi.sweep(objective, x0, grid={"ki": [0.02, 0.1], "kp": [0.0, 1.0]}, **arguments)
    assert found.x["w"].shape == (2, 2, 2, 3)
    assert found.x["b"].shape == (2, 2)
    assert found.multipliers["bound"].shape == (2, 2, 2, 3)
    for i, ki in enumerate((0.02, 0.1)):
        for j, kp in enumerate((0.0, 1.0)):
            one = nupi.minimize(objective, x0, ki=ki, kp=kp, **arguments)
            torch.testing.assert_close(found.multipliers["bound"][i, j], one.multipliers["bound"])
            torch.testing.assert_close(found.x["w"][i, j], one.x["w"])
            torch.testing.assert_close(found.residuals.worst[i, j], one.residuals.worst)
            torch.testing.assert_close(found.objective[i, j], one.objective)


def test_history_equals_that_of_a_single_run():
    problem = mixed()
    arguments = {
        "inequality": problem.inequality,
        "equality": problem.equality,
        "primal": SGD,
        "steps": 23,
        "history": ["objective", "violations", "multipliers", "x"],
        "every": 4,
    }
    found = nupi.sweep(problem.objective, problem.x0, grid={"kp": [0.0, 1.0], "ki": [0.1]}, **arguments)
    one = nupi.minimize(problem.objective, problem.x0, ki=0.1, kp=1.0, **arguments)
    assert torch.equal(found.history["step"], one.history["step"])
    several = found.at(kp=1.0, ki=0.1).history
    for name in ("objective", "x"):
        torch.testing.assert_close(several[name], one.history[name])
    for name in ("violations", "multipliers"):
        torch.testing.assert_close(several[name], one.history[name])


def test_a_constraint_that_is_x_itself_is_recorded_as_it_was():
    arguments = {
        "equality": lambda x: x,
        "primal": SGD,
        "steps": 9,
        "history": ["violations", "x", "multipliers"],
    }
    x0 = torch.tensor([1.0, -2.0], dtype=torch.float64)
    several = nupi.sweep(lambda x: x.square().sum(), x0, grid={"ki": [0.1], "kp": [1.0]}, **arguments)
    one = nupi.minimize(lambda x: x.square().sum(), x0, ki=0.1, kp=1.0, **arguments)
    found = several.at(ki=0.1, kp=1.0)
    torch.testing.assert_close(found.history["violations"]["equality"], found.history["x"])
    torch.testing.assert_close(found.history["violations"], one.history["violations"])
    torch.testing.assert_close(found.history["multipliers"], one.history["multipliers"])


# torch's own compiler warns about torch's own jit when it is first imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_equals_replayed():
    problem = corner()
    arguments = {"inequality": problem.inequality, "primal": SGD, "steps": 30}
    grid = [{"ki": [0.05, 0.1], "kp": [0.0, 0.5]}, {"ki": [0.1], "kp": [0.5], "form": ["positional"]}]
    plain = nupi.sweep(problem.objective, problem.x0, grid=grid, **arguments)
    fused = nupi.sweep(problem.objective, problem.x0, grid=grid, compiled=True, **arguments)
    torch.testing.assert_close(fused.multipliers, plain.multipliers, rtol=1e-12, atol=1e-12)
