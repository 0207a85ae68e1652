"""A monitor records what the multipliers were given and where they went: against plain copies made in the loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi
from nupi.monitor.columns import STATISTICS
from nupi.monitor.thinned import Thinned

SHAPES = {"one": (), "few": (3,), "table": (4, 5), "many": (100,)}


def problem(shapes=SHAPES, **options):
    lagrangian = nupi.Lagrangian({name: nupi.Inequality(shape or 1) for name, shape in shapes.items()})
    return lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=0.5), nupi.Monitor(lagrangian, **options)


def train(lagrangian, dual, steps, shapes=SHAPES, seed=0):
    """Random violations; what was given and what came of it, by name."""
    g = torch.Generator().manual_seed(seed)
    given, came = {name: [] for name in shapes}, {name: [] for name in shapes}
    for _ in range(steps):
        violations = {name: torch.randn(shape or (1,), generator=g) for name, shape in shapes.items()}
        lagrangian.ascend(dual, violations)
        for name, violation in violations.items():
            given[name].append(violation.reshape(-1).double())
            came[name].append(lagrangian.multipliers[name].reshape(-1).double().clone())
            violation.fill_(torch.nan)  # the user may do with it what he likes
    return {n: torch.stack(v) for n, v in given.items()}, {n: torch.stack(v) for n, v in came.items()}


@pytest.mark.parametrize("steps", [1, 255, 256, 257, 768, 769])
def test_every_step_of_every_small_group_is_there(steps):
    lagrangian, dual, monitor = problem()
    given, came = train(lagrangian, dual, steps)
    record = monitor.record
    assert len(record) == record.last_step == steps
    for name in ("one", "few", "table"):
        for series in record.series(record.columns.groups[name]):
            assert series.steps.tolist() == list(range(1, steps + 1))
            assert torch.equal(series.violation, given[name][:, series.index])
            assert torch.equal(series.multiplier, came[name][:, series.index])


def test_statistics_are_those_of_the_group():
    lagrangian, dual, monitor = problem()
    given, came = train(lagrangian, dual, 150)
    for name in ("few", "table", "many"):
        e, theta = given[name], came[name]
        before = torch.cat([torch.full_like(theta[:1], torch.nan), theta[:-1]])
        expected = {
            "violation_mean": e.mean(1),
            "violation_min": e.amin(1),
            "violation_max": e.amax(1),
            "violation_norm": e.square().sum(1).sqrt(),
            "multiplier_mean": theta.mean(1),
            "multiplier_min": theta.amin(1),
            "multiplier_max": theta.amax(1),
            "multiplier_norm": theta.square().sum(1).sqrt(),
            "active": (theta > 0).double().mean(1),
            "multiplier_step": (theta - before).square().sum(1).sqrt(),
        }
        found = monitor.record.statistics(monitor.record.columns.groups[name])
        assert tuple(found) == STATISTICS
        for statistic, values in expected.items():
            torch.testing.assert_close(found[statistic], values, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.filterwarnings("ignore::nupi.monitor.ConstraintWarning")  # nothing answers here
def test_the_worst_of_a_large_group_are_followed_by_index():
    lagrangian = nupi.Lagrangian({"points": nupi.Inequality(1000)})
    dual, monitor = nupi.NuPI(lagrangian.parameters(), ki=0.1), nupi.Monitor(lagrangian)
    for step in range(300):
        e = torch.full((1000,), -1.0)
        e[[7, 500, 999]] = torch.tensor([3.0, 2.0, 1.0 + step / 300])
        lagrangian.ascend(dual, {"points": e})
    followed = {s.index: s for s in monitor.record.series(monitor.record.columns.groups["points"])}
    assert {7, 500, 999} <= set(followed)
    assert followed[7].place == "points[7]"
    assert len(followed[999].steps) == 300
    torch.testing.assert_close(followed[999].violation, 1.0 + torch.arange(300).double() / 300)


@pytest.mark.parametrize("size", [3, 100])
def test_one_group_alone_through_blocks_and_a_change_of_type(size):
    """A group that is seen alone waits in memory that is used again, and of one type."""
    lagrangian, dual, monitor = problem({"c": (size,)})
    g = torch.Generator().manual_seed(2)
    given, came = [], []
    for step in range(900):
        if step in {400, 700}:  # within the second block, and back within the third
            lagrangian.to(torch.float64 if step == 400 else torch.float32)
        violation = torch.randn(size, generator=g, dtype=lagrangian.multipliers["c"].dtype)
        lagrangian.ascend(dual, {"c": violation})
        given.append(violation.double())
        came.append(lagrangian.multipliers["c"].double().clone())
    e, theta = torch.stack(given), torch.stack(came)
    record, group = monitor.record, monitor.record.columns.groups["c"]
    found = record.statistics(group)
    before = torch.cat([torch.full_like(theta[:1], torch.nan), theta[:-1]])
    expected = {
        "violation_mean": e.mean(1),
        "multiplier_max": theta.amax(1),
        "active": (theta != 0).double().mean(1),
        "multiplier_step": (theta - before).square().sum(1).sqrt(),
    }
    for statistic, values in expected.items():
        torch.testing.assert_close(found[statistic], values, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert record.recent()[0].tolist() == list(range(1, 901))
    for series in record.series(group):
        at = series.steps.long() - 1
        assert torch.equal(series.violation, e[at, series.index])
        assert torch.equal(series.multiplier, theta[at, series.index])


def test_two_groups_that_take_turns():
    shapes = {"a": (2,), "b": (3,)}
    lagrangian, dual, monitor = problem(shapes)
    given = {"a": [], "b": []}
    for step in range(600):
        name = "ab"[step % 2 if step < 300 else 1]
        given[name].append((step + 1, torch.full(shapes[name], -float(step))))
        lagrangian.ascend(dual, {name: given[name][-1][1]})
    for name, seen in given.items():
        for series in monitor.record.series(monitor.record.columns.groups[name]):
            assert series.steps.tolist() == [step for step, _ in seen]
            assert series.violation.tolist() == [float(values[0]) for _, values in seen]


@pytest.mark.parametrize("size", [20, 200])
def test_rows_that_come_in_batches(size):
    lagrangian = nupi.Lagrangian({"points": nupi.Inequality((size, 2))})
    dual, monitor = nupi.NuPI(lagrangian.parameters(), ki=0.1), nupi.Monitor(lagrangian)
    g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(100):
        rows = torch.randperm(size, generator=g)[:6].sort().values
        values = torch.randn(6, 2, generator=g)
        values[rows == 3] = 50.0  # the worst whenever it comes
        lagrangian.ascend(dual, {"points": nupi.Indexed(values, rows)})
        batches.append((rows, values, lagrangian.multipliers["points"].clone()))
    record, group = monitor.record, monitor.record.columns.groups["points"]
    found = record.statistics(group)
    means = torch.stack([values.double().mean() for _, values, _ in batches])
    torch.testing.assert_close(found["violation_mean"], means)
    highest = torch.stack([theta[rows].amax().double() for rows, _, theta in batches])
    torch.testing.assert_close(found["multiplier_max"], highest)
    series = {s.index: s for s in record.series(group)}[6]  # row 3, first of its two constraints
    times = [step for step, (rows, _, _) in enumerate(batches, 1) if 3 in rows]
    assert set(series.steps.long().tolist()) <= set(times)
    assert len(series.steps) >= len(times) - 1  # all, but for the block before it was known to be bad
    assert set(series.violation.tolist()) == {50.0}


def test_constraints_that_come_at_different_steps():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(), "b": nupi.Equality()})
    dual, monitor = nupi.NuPI(lagrangian.parameters(), ki=0.1), nupi.Monitor(lagrangian)
    for step in range(1, 101):
        lagrangian.ascend(dual, {"a": torch.tensor(float(step))})
        if step % 10 == 0:
            lagrangian.ascend(dual, {"b": torch.tensor(-float(step))})
    record = monitor.record
    (a,), (b,) = (list(record.series(record.columns.groups[name])) for name in "ab")
    assert a.violation.tolist() == [float(s) for s in range(1, 101)]
    assert b.violation.tolist() == [-float(s) for s in range(10, 101, 10)]
    assert sorted(a.steps.tolist() + b.steps.tolist()) == list(range(1, 111))
    assert monitor.latest()["nupi/b/violation"] == -100.0


def test_memory_is_bounded_and_the_whole_run_is_there_thinned():
    lagrangian, dual, monitor = problem({"one": ()}, keep=100)
    given, came = train(lagrangian, dual, 5_000, {"one": ()})
    record = monitor.record
    steps, columns = record.recent()
    assert steps.tolist() == list(range(4_901, 5_001))
    assert torch.equal(columns[:, 0], given["one"][-100:, 0])
    assert len(record._rows) <= 200
    overview = record.overview()
    assert len(overview.steps) <= 1024
    width = round(float(overview.steps[1] - overview.steps[0]))
    e, theta = given["one"][:, 0], came["one"][:, 0]
    assert len(overview.steps) == -(-5_000 // width)
    for k in (0, 1, len(overview.steps) - 2):
        part = slice(k * width, (k + 1) * width)
        torch.testing.assert_close(overview.mean[k, 0], e[part].mean())
        assert overview.low[k, 0] == e[part].min()
        assert overview.high[k, 1] == theta[part].max()


@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=12), gaps=st.booleans(), seed=st.integers(0, 9)
)
@settings(max_examples=settings.default.max_examples // 2)
def test_thinning_loses_no_extreme_and_no_mass_however_rows_come(sizes, gaps, seed):
    total = sum(sizes)
    rows = torch.randn(total, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows[:, 0] = torch.arange(1, total + 1)
    if gaps:
        rows[::3, 2] = torch.nan
    thinned = Thinned(2)
    for part in rows.split(sizes):
        thinned.add(part)
    seen = thinned.overview()
    whole = rows[:, 1:]
    for column in range(2):
        measured = whole[:, column][~whole[:, column].isnan()]
        if len(measured):
            assert seen.low[:, column].nan_to_num(nan=9e9).min() == measured.min()
            assert seen.high[:, column].nan_to_num(nan=-9e9).max() == measured.max()
    torch.testing.assert_close(thinned._sum[:, 1].sum(), whole[:, 0].sum())
    assert len(seen.steps) == -(-total // thinned.stride)


def test_every_so_many():
    lagrangian, dual, monitor = problem({"one": ()}, every=7)
    given, _ = train(lagrangian, dual, 100, {"one": ()})
    (series,) = monitor.record.series(monitor.record.columns.groups["one"])
    assert series.steps.tolist() == list(range(1, 101, 7))
    assert torch.equal(series.violation, given["one"][::7, 0])


def test_one_optimizer_of_two():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(), "b": nupi.Equality()})
    first, second = (nupi.NuPI([lagrangian.get_parameter(name)], ki=0.1) for name in "ab")
    monitor = nupi.Monitor(lagrangian, second)
    lagrangian.ascend(first, {"a": torch.tensor(1.0)})
    lagrangian.ascend(second, {"b": torch.tensor(2.0)})
    assert len(monitor.record) == 1
    assert "nupi/a/violation" not in monitor.latest()


def test_an_optimizer_without_multipliers_is_refused():
    """The model's optimizer, given by mistake, would leave an empty record, and an empty record has no findings."""
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    primal = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
    with pytest.raises(ValueError, match=r"dual \(Adam\) has no multiplier of this Lagrangian"):
        nupi.Monitor(lagrangian, primal)


def test_gains_are_noted_when_they_change():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(), "b": nupi.Equality(2)})
    a, b = (lagrangian.get_parameter(name) for name in "ab")
    kp = torch.tensor([1.0, 3.0])
    dual = nupi.NuPI([{"params": [a]}, {"params": [b], "kp": kp}], ki=0.1, kp=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(dual, 40, 0.5)
    monitor = nupi.Monitor(lagrangian)
    for _ in range(100):
        lagrangian.ascend(dual, {"a": torch.tensor(0.1), "b": torch.zeros(2)})
        dual.step()  # a scheduler wants to see a step of its optimizer; without gradients it moves nothing
        scheduler.step()
    record = monitor.record
    assert [(step, gains["lr"]) for step, gains in record.gains_of("a").changes] == [
        (1, 1),
        (41, 0.5),
        (81, 0.25),
    ]
    assert record.gains_of("b").latest["kp"] == 2.0  # the mean of a tensor of gains
    assert monitor.latest()["nupi/a/kp"] == 0.5


class FindsGains(nupi.NuPI):
    """As an optimizer that tunes itself, it says what it has found."""

    def gains(self):
        return {"a": {"ki": 0.25, "kp": torch.tensor([1.0, 2.0]), "b": 4.0, "h": 0.1}}


def test_an_optimizer_that_finds_its_gains_is_asked():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2)})
    dual, monitor = FindsGains(lagrangian.parameters(), ki=0.1), nupi.Monitor(lagrangian)
    for _ in range(256):
        lagrangian.ascend(dual, {"a": torch.zeros(2)})
    assert monitor.record.gains_of("a").latest == {"ki": 0.25, "kp": 1.5, "b": 4.0, "h": 0.1}


def test_a_resumed_run_has_one_record(tmp_path):
    lagrangian, dual, monitor = problem()
    given, _ = train(lagrangian, dual, 90)
    torch.save(monitor.state_dict(), tmp_path / "state")
    lagrangian2, dual2, monitor2 = problem()
    lagrangian2.load_state_dict(lagrangian.state_dict())
    dual2.load_state_dict(dual.state_dict())
    monitor2.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    more, _ = train(lagrangian2, dual2, 90, seed=1)
    (series,) = monitor2.record.series(monitor2.record.columns.groups["one"])
    assert series.steps.tolist() == list(range(1, 181))
    assert torch.equal(series.violation, torch.cat([given["one"], more["one"]])[:, 0])
    assert len(monitor2.record.overview().steps) == 180
    with pytest.raises(ValueError, match="'one'"):
        problem({"other": ()})[2].load_state_dict(monitor.state_dict())


def test_a_step_that_is_refused_is_not_recorded():
    lagrangian, dual, monitor = problem({"one": ()})
    train(lagrangian, dual, 3, {"one": ()})
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"one": torch.tensor(torch.nan)})
    assert len(monitor.record) == 3


def test_a_frame():
    lagrangian, dual, monitor = problem()
    given, came = train(lagrangian, dual, 70)
    frame = monitor.frame()
    assert frame.index.tolist() == list(range(1, 71))
    assert frame["one/violation"].tolist() == given["one"][:, 0].tolist()
    assert frame["table[2, 3]/multiplier"].tolist() == came["table"][:, 13].tolist()
    assert frame["few/violation_max"].tolist() == pytest.approx(given["few"].amax(1).tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every"),
        ({"keep": 2.5}, "keep"),
        ({"log": 3}, "log must be"),
        ({"path": 3}, "path must be"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        nupi.Monitor(nupi.Lagrangian({"a": nupi.Equality()}), **options)


def test_nobody_is_heard_after_close_and_a_copy_is_not_heard():
    from copy import deepcopy

    lagrangian, dual, monitor = problem({"one": ()})
    other = deepcopy(lagrangian)
    train(other, nupi.NuPI(other.parameters(), ki=0.1), 3, {"one": ()})
    assert len(monitor.record) == 0
    with monitor:
        train(lagrangian, dual, 3, {"one": ()})
    train(lagrangian, dual, 3, {"one": ()})
    assert len(monitor.record) == 3
