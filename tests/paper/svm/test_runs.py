"""The SVM sweep against the loop, and against nuPI written out in numpy."""

from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.solve.problems import Known, loop

import nupi
from nupi.paper.runner import TargetRun
from nupi.paper.svm.problem import svm
from nupi.paper.svm.runs import DUALS, MAP_KP, PRIMAL, baselines, run_sweep, step_sizes
from nupi.solve import dispatch

SAMPLE = [
    {"dual": ["nupi"], "ki": [0.1], "kp": [10.0], "nu": [-0.5, 0.0, 0.9]},
    {"dual": ["nupi"], "ki": [0.05], "kp": [5.0], "init": ["error", "ema", "bumpless"]},
    {"dual": ["nupi"], "ki": [0.05], "kp": [5.0], "form": ["positional"]},
    {"dual": ["ga", "adam"], "lr": [0.005]},
    {"dual": ["restart"], "lr": [0.005], "restart": [True]},
    {"dual": ["polyak", "nesterov"], "lr": [0.002], "beta": [-0.9, 0.9]},
    {"dual": ["pid"], "ki": [0.05], "kp": [5.0], "kd": [1.0]},
]


def test_a_sample_of_points_equals_the_loop():
    problem = svm()
    found = run_sweep(None, SAMPLE, steps=300)
    known = Known(problem.objective, torch.zeros(5, dtype=torch.float64), inequality=problem.violations)
    for row, setting in enumerate(found.settings):
        options = {name: value for name, value in setting.items() if name not in ("dual", "restart")}
        dual = partial(DUALS[setting["dual"]], **options)
        _, multipliers = loop(known, dual, PRIMAL, 300, restart=setting.get("restart", False))
        torch.testing.assert_close(
            found.multipliers["inequality"][row], multipliers["inequality"], rtol=1e-9, atol=1e-9
        )


def test_nupi_written_out_in_numpy_agrees():
    rows = svm().rows.numpy()
    ki, kp = 0.127, 10.0
    point, velocity = np.zeros(5), np.zeros(5)
    theta, previous = np.zeros(70), np.zeros(70)
    for t in range(500):
        e = 1 - rows @ point
        # xi_0 = 0: the first step is gradient ascent, the second has the whole of kp e_1.
        theta = np.maximum(theta + ki * e + (kp * (e - previous) if t else 0), 0)
        previous = e if t else np.zeros(70)
        gradient = np.append(point[:4], 0.0) - rows.T @ theta
        velocity = 0.9 * velocity + gradient
        point = point - 1e-3 * velocity
    found = run_sweep(
        None, {"ki": [ki], "kp": [kp]}, dual=partial(nupi.NuPI, init="zero", form="velocity"), steps=500
    )
    np.testing.assert_allclose(found.multipliers["inequality"][0, 0].numpy(), theta, rtol=0, atol=1e-9)


def test_a_target_goes_on_where_it_was(tmp_path, monkeypatch):
    ran = []
    real = dispatch.run_chunk

    def counted(plan, settings, *others):
        ran.append(len(settings))
        return real(plan, settings, *others)

    monkeypatch.setattr(dispatch, "run_chunk", counted)
    run = TargetRun("svm-test", "smoke", tmp_path, Console(quiet=True))
    options = {"dual": nupi.NuPI, "steps": 20, "chunk": 2}
    first = run_sweep(run, {"ki": [0.01, 0.1, 1.0]}, **options)
    assert ran == [2, 1]
    (chunk,) = tmp_path.rglob("chunk-00001.pt")
    chunk.unlink()
    again = run_sweep(run, {"ki": [0.01, 0.1, 1.0]}, **options)
    assert ran == [2, 1, 1]
    assert torch.equal(first.multipliers["inequality"], again.multipliers["inequality"])
    run_sweep(run, {"ki": [0.01, 0.2]}, **options)  # the target has changed: what it left is of no use
    assert ran == [2, 1, 1, 2]


def test_the_grids_are_the_papers():
    sizes = step_sizes()
    assert len(sizes) == 20
    assert sizes[0] == pytest.approx(1e-5)
    assert sizes[-1] == pytest.approx(10**1.5)
    assert step_sizes(5)[::5] == pytest.approx(sizes)
    assert len(MAP_KP) == 18
    assert sum(np.prod([len(axis) for axis in grid.values()]) for grid in baselines("paper")) == 460
