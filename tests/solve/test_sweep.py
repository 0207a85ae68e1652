import itertools
import math
import re
from functools import partial

import pytest
import torch
from tests.solve.problems import Known, corner, mixed

import nupi
from nupi.solve.progress import Bar

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.8)
X0 = torch.zeros(2, dtype=torch.float64)


def sweep(problem=None, **arguments):
    problem = problem or corner()
    given = {
        "inequality": problem.inequality,
        "equality": problem.equality,
        "primal": SGD,
        "steps": 50,
        "grid": {"ki": [0.05, 0.1, 0.2], "kp": [0.0, 1.0]},
    }
    return nupi.sweep(problem.objective, problem.x0, **(given | arguments))


def test_arrays_have_the_axes_of_the_grid_in_order():
    found = sweep(mixed(), grid={"kp": torch.tensor([0.0, 1.0]), "ki": (0.05, 0.1, 0.2)})
    assert found.axes == {"kp": (0.0, 1.0), "ki": (0.05, 0.1, 0.2)}
    assert found.shape == (2, 3)
    assert found.multipliers["low"].shape == (2, 3, 3)
    assert found.multipliers["cap"].shape == (2, 3)
    assert found.x.shape == (2, 3, 3)
    assert found.status.shape == found.objective.shape == found.residuals.worst.shape == (2, 3)
    one = sweep(mixed(), grid={"kp": [1.0], "ki": [0.2]})
    torch.testing.assert_close(found.multipliers["low"][1, 2], one.multipliers["low"][0, 0])


def test_at_picks_by_value_and_survives_rounding():
    found = sweep()
    part = found.at(ki=0.1 + 1e-17)
    assert part.axes == {"kp": (0.0, 1.0)}
    assert part.settings == ({"ki": 0.1, "kp": 0.0}, {"ki": 0.1, "kp": 1.0})
    assert torch.equal(part.multipliers["inequality"], found.multipliers["inequality"][1])
    point = part.at(kp=1.0)
    assert point.shape == ()
    assert point.status == nupi.Status.BUDGET_SPENT
    assert "budget spent, 50 steps" in repr(point)
    coarse = sweep(grid={"ki": torch.logspace(-2, -1, 3)})
    assert coarse.at(ki=0.1).settings[0]["ki"] == pytest.approx(0.1)
    near = sweep(grid={"ki": [0.1, 0.1 + 1e-9]})
    assert near.at(ki=0.1 + 1e-9).settings == ({"ki": 0.1 + 1e-9},)
    with pytest.raises(KeyError, match="there is no axis 'nu'"):
        found.at(nu=0.0)
    with pytest.raises(KeyError, match=r"ki=0.3 is not on its axis"):
        found.at(ki=0.3)


def test_frame_has_a_row_per_setting_and_the_columns_asked_for():
    found = sweep(tol=1e-3)
    distance = (found.multipliers["inequality"] - (math.sqrt(5) - 1)).abs()
    frame = found.frame(distance=distance)
    assert len(frame) == 6
    assert frame["ki"].tolist() == [0.05, 0.05, 0.1, 0.1, 0.2, 0.2]
    assert frame["distance"].tolist() == distance.reshape(-1).tolist()
    assert set(frame["status"]) <= {"converged", "budget spent"}
    with pytest.raises(ValueError, match="column 'distance' has shape"):
        found.frame(distance=distance[0])
    assert found.frame(row=[[1, 2], [3, 4], [5, 6]])["row"].tolist() == [1, 2, 3, 4, 5, 6]
    for name in ("status", "ki", "objective"):
        with pytest.raises(ValueError, match=f"already has a column '{name}'"):
            found.frame(**{name: distance})


def test_a_union_of_grids_has_one_axis_and_none_where_a_gain_does_not_apply():
    found = sweep(
        dual={"nuPI": nupi.NuPI, "Adam": partial(torch.optim.Adam, maximize=True)},
        grid=[{"dual": ["nuPI"], "ki": [0.1], "kp": [0.0, 1.0]}, {"dual": ["Adam"], "lr": [0.01, 0.1]}],
    )
    assert found.axes == {"setting": (0, 1, 2, 3)}
    frame = found.frame()
    assert frame["dual"].tolist() == ["nuPI", "nuPI", "Adam", "Adam"]
    assert frame["kp"].isna().tolist() == [False, False, True, True]


@pytest.mark.parametrize("steps", [60, 1500])  # before and after diverged runs are let go
def test_runs_that_diverge_do_not_disturb_the_others(steps):
    quiet = {"ki": [0.05, 0.1], "kp": [0.0, 1.0]}
    wild = {"ki": [1e3, 1e6, 1e10, 1e30], "kp": [0.0]}
    arguments = {"inequality": None, "equality": lambda x: x.sum() - 1, "steps": steps}
    problem = mixed()
    alone = sweep(problem, grid=[quiet], **arguments)
    mixed_up = sweep(problem, grid=[wild, quiet, {"ki": [1e5], "form": ["positional"]}], **arguments)
    order = [s["ki"] for s in mixed_up.settings]
    assert order == [1e3, 1e6, 1e10, 1e30, 0.05, 0.05, 0.1, 0.1, 1e5]
    torch.testing.assert_close(
        mixed_up.multipliers["equality"][4:8], alone.multipliers["equality"], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(mixed_up.x[4:8], alone.x, rtol=1e-12, atol=1e-12)
    assert (mixed_up.status[4:8] != nupi.Status.DIVERGED).all()
    if steps == 1500:
        assert (mixed_up.status[:4] == nupi.Status.DIVERGED).all()
        assert (
            mixed_up.steps[1:4] < 1500
        ).all()  # 1e3 diverges later, and alone: to go on without it does not pay
        assert (mixed_up.steps[4:8] == 1500).all()
        assert "5 diverged" in repr(mixed_up)


def test_when_all_have_diverged_the_sweep_ends():
    found = sweep(
        inequality=None,
        equality=lambda x: x.sum() - 1,
        grid={"ki": [1e10, 1e30]},
        steps=10**6,
        history=["objective"],
        every=1000,
    )
    assert (found.status == nupi.Status.DIVERGED).all()
    assert (found.steps < 1000).all()
    assert found.history["objective"][:, 1:].isnan().all()


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_chunks_change_nothing_but_the_memory(chunk):
    whole = sweep(mixed(), history=["multipliers"], every=7)
    cut = sweep(mixed(), history=["multipliers"], every=7, chunk=chunk)
    torch.testing.assert_close(cut.multipliers, whole.multipliers, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        cut.history["multipliers"], whole.history["multipliers"], rtol=1e-12, atol=1e-12
    )


def test_float32_stays_float32():
    found = nupi.sweep(
        lambda x: x.square().sum(),
        torch.zeros(2),
        inequality=lambda x: 1 - x.sum(),
        grid={"ki": [0.1]},
        steps=5,
    )
    assert found.x.dtype == found.multipliers["inequality"].dtype == torch.float32


def test_a_constant_objective_can_be_swept():
    found = sweep(
        Known(lambda _: torch.zeros((), dtype=torch.float64), torch.zeros(2, dtype=torch.float64)),
        equality=lambda x: x.sum() - 1,
        grid={"ki": [0.1], "kp": [2.0]},
        primal=partial(torch.optim.SGD, lr=0.1),
        tol=1e-6,
        steps=1000,
    )
    assert (found.status == nupi.Status.CONVERGED).all()


def test_everything_lives_where_x0_does():
    """A default device that cannot compute catches any tensor that is made without a thought for x0's."""
    problem, expected = mixed(), sweep(mixed(), dual=partial(nupi.NuPI, form="positional"), restart=True)
    with torch.device("meta"):
        found = sweep(
            problem, dual=partial(nupi.NuPI, form="positional"), restart=True, history=["x", "multipliers"]
        )
        part = found.at(ki=0.1)
    assert part.x.device.type == "cpu"
    torch.testing.assert_close(found.multipliers, expected.multipliers)


def test_torch_has_its_threads_back_after_a_sweep():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sweep()
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            sweep(progress=lambda _done, _total: 1 // 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_progress_is_told_of_every_setting_and_step():
    seen: list[tuple[int, int]] = []
    sweep(steps=450, chunk=4, progress=lambda done, total: seen.append((done, total)))
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert {total for _, total in seen} == {6 * 450}
    assert counts[-1] == 6 * 450
    assert len(seen) > 4


def test_the_bar_waits_a_second_and_ends_its_line(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("nupi.solve.progress.time.monotonic", lambda: clock[0])
    bar = Bar()
    clock[0] = 0.5
    bar(10, 100)
    assert capsys.readouterr().err == ""
    clock[0] = 2.0
    bar(50, 100)
    assert re.search(r"#{15}\.{15}\]  50%\s+2 s left$", capsys.readouterr().err)
    bar(100, 100)
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grid": {}}, ValueError, "grid is empty"),
        ({"grid": {"ki": 0.1}}, TypeError, r"axis 'ki' of the grid must be a list.*use \[\.\.\.\]"),
        ({"grid": {"ki": []}}, ValueError, "axis 'ki' of the grid has no values"),
        ({"grid": {"ki": [10**400]}}, ValueError, "axis 'ki' of the grid holds a number of 401 digits"),
        ({"grid": {"ki": [0.1, 0.1]}}, ValueError, "holds a value twice"),
        ({"grid": {"ki": [1, 1.0]}}, ValueError, "holds a value twice"),
        ({"grid": {"ki": [torch.tensor([0.1, 0.2])]}}, TypeError, r"axis 'ki'.*Tensor of shape \(2,\)"),
        ({"dual": "nupi"}, TypeError, "dual must be an optimizer class.*'nupi' came"),
        ({"dual": [nupi.NuPI]}, TypeError, "dual must be an optimizer class"),
        ({"dual": 3}, TypeError, "dual must be an optimizer class.*3 came"),
        ({"dual": torch.optim.LBFGS}, TypeError, "dual cannot be made|LBFGS evaluates"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be the path of a directory.*3 came"),
        ({"checkpoint": __file__}, NotADirectoryError, "is a file; name a directory"),
        ({"progress": "yes"}, TypeError, "progress must be a function.*'yes' came"),
        ({"compiled": "no"}, TypeError, "compiled must be True or False, but 'no' came"),
        ({"history": None}, TypeError, "history must be a list"),
        ({"grid": {"ki": [-1.0]}}, ValueError, r"ki must lie in \[0, inf\), but -1.0 came$"),
        ({"grid": 3}, TypeError, "grid must be a dict"),
        ({"grid": {"ki": [0.1], "gain": [1.0]}}, TypeError, "dual cannot be made with .*gain"),
        ({"grid": {"ki": [0.1, -0.1]}}, ValueError, "ki must lie in"),
        ({"grid": {"ki": [0.1], "init": ["warm"]}}, ValueError, "init must be one of"),
        ({"grid": {"ki": [0.1], "restart": ["no"]}}, TypeError, "restart must be True or False"),
        ({"dual": torch.optim.Adam, "grid": {"lr": [0.1]}}, ValueError, "dual would minimize.*maximize=True"),
        ({"dual": torch.optim.RMSprop, "grid": {"lr": [0.1]}}, ValueError, "would minimize"),
        (
            {"dual": partial(torch.optim.RMSprop, maximize=True), "grid": {"lr": [0.1]}},
            TypeError,
            "supports the dual optimizers of nupi, and SGD, Adam, but not RMSprop",
        ),
        (
            {"dual": partial(torch.optim.Adam, maximize=True, amsgrad=True), "grid": {"lr": [0.1]}},
            ValueError,
            "amsgrad=False only",
        ),
        ({"dual": partial(nupi.NuPI, kp=torch.ones(1)), "grid": {"ki": [0.1]}}, TypeError, "kp is a tensor"),
        ({"dual": {"a": nupi.NuPI, "b": nupi.NuPI}}, ValueError, "dual is a dict of 2: name the ones to use"),
        ({"dual": {"a": nupi.NuPI}, "grid": {"dual": ["c"], "ki": [0.1]}}, ValueError, "asks for dual 'c'"),
        ({"primal": torch.optim.RMSprop}, TypeError, "primal: a sweep supports SGD, Adam"),
        ({"primal": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)}, ValueError, "weight_decay=0 only"),
        ({"chunk": 0}, ValueError, "chunk must be a number of settings"),
        ({"steps": 0}, ValueError, "steps must be"),
        ({"history": ["y"]}, ValueError, "history cannot record 'y'"),
    ],
)
def test_bad_input_is_refused_before_any_step(change, error, words):
    with pytest.raises(error, match=words):
        sweep(**change)


def test_a_function_that_cannot_be_batched_says_what_to_do():
    with pytest.raises(ValueError, match=r"cannot be batched.*minimize"):
        sweep(inequality=lambda x: x - x.sum().item())


def test_a_function_of_more_than_x_is_refused():
    calls = itertools.count(1)
    with pytest.raises(ValueError, match="inequality 'inequality' gave two values at x0"):
        sweep(inequality=lambda x: x.sum() - next(calls))
    with pytest.raises(ValueError, match="the objective gave two values at x0"):
        sweep(Known(lambda x: x.sum() + torch.rand(()).double(), X0, inequality=lambda x: x))


def test_a_self_tuned_sweep_without_steps_takes_a_quarter_of_the_run():
    def run(**grid):
        return nupi.sweep(
            lambda x: x.square().sum(),
            torch.zeros(2, dtype=torch.float64),
            equality=lambda x: x.sum() - 1,
            dual=nupi.SelfTuned,
            grid=grid,
            steps=400,
            progress=False,
        )

    found, expected = run(scale=[0.1, 1.0]), run(scale=[0.1, 1.0], steps=[100.0])
    for scale in (0.1, 1.0):
        one, other = found.at(scale=scale), expected.at(scale=scale, steps=100.0)
        assert torch.equal(one.x, other.x)
