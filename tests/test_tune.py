"""Bisection in kp: against functions whose root is known, through kills, and where there is nothing to find."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import program

import nupi
from nupi import tune
from nupi.tune import bisect_kp


@given(
    root=st.floats(0.5, 39.5),
    power=st.sampled_from([0.5, 1.0, 2.0]),
    tolerance=st.sampled_from([0.1, 0.02, 0.004]),
)
def test_it_finds_the_root_of_what_rises(root, power, tolerance):
    def run(kp):
        return (kp / 40) ** power - (root / 40) ** power

    found = bisect_kp(run, 0.0, 40.0, tolerance=tolerance, max_runs=60)
    assert found.status == "converged"
    assert abs(run(found.kp)) <= tolerance
    assert found.violation == run(found.kp)
    assert all(each.violation == run(each.kp) for each in found.runs)


@given(root=st.floats(0.0, 40.0))
def test_eight_runs_bring_40_down_to_less_than_1(root):
    found = bisect_kp(lambda kp: kp - root, 0.0, 40.0, tolerance=40 / 2**6, max_runs=8)
    assert found.status == "converged"
    assert len(found.runs) <= 8


def test_the_bracket_grows_while_that_helps():
    found = bisect_kp(lambda kp: math.tanh((kp - 100) / 50), 0.0, 40.0, tolerance=0.02, max_runs=12)
    assert [run.kp for run in found.runs[:4]] == [0.0, 40.0, 120.0, 80.0]
    assert found.status == "converged"
    assert found.kp == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        (lambda kp: 1 + kp, [0.0, 40.0]),  # violated whatever kp is: there is nothing below 0
        (lambda kp: -1 - kp, [0.0, 40.0]),  # more kp makes it worse
        (lambda kp: -(1 + abs(kp - 50) / 50), [0.0, 40.0, 120.0]),  # turns before it gets there
        (lambda kp: -1.0 / (1 + kp), [0.0, 40.0, 120.0, 280.0, 600.0]),  # never gets there
    ],
)
def test_no_sign_change_is_said_and_the_best_run_is_given(run, asked):
    found = bisect_kp(run, 0.0, 40.0, tolerance=1e-4, max_runs=5)
    assert found.status == "no sign change"
    assert [each.kp for each in found.runs] == asked
    assert abs(found.violation) == min(abs(each.violation) for each in found.runs)


def test_out_of_runs():
    found = bisect_kp(lambda kp: kp - 1 / 3, 0.0, 1.0, tolerance=1e-9, max_runs=6)
    assert found.status == "out of runs"
    assert len(found.runs) == 6
    low, high = found.bracket
    assert low < 1 / 3 < high
    assert high - low == pytest.approx(1 / 2**4)


@pytest.mark.parametrize("end", [0.0, 40.0])
def test_an_end_that_will_do_is_enough(end):
    found = bisect_kp(lambda kp: (kp - end) / 40, 0.0, 40.0, tolerance=1e-3)
    assert (found.kp, found.status) == (end, "converged")
    assert len(found.runs) == (1 if end == 0 else 2)


KILLED = """
import os
from nupi.tune import bisect_kp
def run(kp):
    with open(made, "a") as file:
        print(kp, file=file)
    if dies == len(open(made).readlines()):
        os.kill(os.getpid(), 9)
    return kp - 13.0
found = bisect_kp(run, 0.0, 40.0, tolerance=0.1, max_runs=12, journal=journal)
with open(end, "w") as file:
    print(found.status, found.kp, len(found.runs), file=file)
"""


def test_a_killed_search_goes_on_where_it_was(tmp_path):
    journal, made = tmp_path / "deep" / "kp.json", tmp_path / "made"
    end = tmp_path / "end"
    first, second = (program(KILLED, journal=journal, made=made, end=end, dies=dies) for dies in (4, 0))
    first.start()
    first.join(120)
    assert first.exitcode == -9
    assert not end.exists()
    assert [each["kp"] for each in json.loads(journal.read_text())] == [0.0, 40.0, 20.0]
    second.start()
    second.join(120)
    assert second.exitcode == 0
    whole = bisect_kp(lambda kp: kp - 13.0, 0.0, 40.0, tolerance=0.1, max_runs=12)
    assert end.read_text().split() == [whole.status, str(whole.kp), str(len(whole.runs))]
    asked = [float(line) for line in made.read_text().split()]
    assert asked == [
        0.0,
        40.0,
        20.0,
        10.0,
        *[run.kp for run in whole.runs[3:]],
    ]  # only the killed run is made again
    assert [*journal.parent.iterdir()] == [journal]


def test_a_journal_serves_a_longer_search(tmp_path):
    def never(kp):
        raise AssertionError(f"kp={kp} is in the journal")

    short = bisect_kp(lambda kp: kp - 13, 0.0, 40.0, tolerance=1e-6, max_runs=4, journal=tmp_path / "kp.json")
    again = bisect_kp(never, 0.0, 40.0, tolerance=1e-6, max_runs=4, journal=tmp_path / "kp.json")
    assert again == short
    longer = bisect_kp(
        lambda kp: kp - 13, 0.0, 40.0, tolerance=1e-6, max_runs=9, journal=tmp_path / "kp.json"
    )
    assert longer.runs[:4] == short.runs
    assert len(longer.runs) == 9


def test_a_run_that_fails_loses_nothing(tmp_path):
    journal = tmp_path / "kp.json"
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"run\(kp=20.0\) returned {bad}"):
            bisect_kp(
                lambda kp, bad=bad: bad if kp == 20 else kp - 13, 0.0, 40.0, tolerance=0.1, journal=journal
            )
        assert [each["kp"] for each in json.loads(journal.read_text())] == [0.0, 40.0]


def test_it_tunes_a_training():
    """A quadratic with a lagging constraint: kp is found with which the first swing just reaches the boundary."""

    def overshoot(kp):
        x = torch.tensor([0.0], requires_grad=True)
        primal = torch.optim.SGD([x], lr=0.02)
        lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
        dual = nupi.NuPI(lagrangian.parameters(), ki=0.05, kp=kp, init="bumpless")
        lowest = math.inf
        for _ in range(150):
            violations = {"c": 1 - x}
            lagrangian.ascend(dual, violations)
            lagrangian(0.5 * x.square().sum(), violations).backward()
            primal.step()
            primal.zero_grad()
            lowest = min(lowest, 1 - x.item())
        return torch.tensor(lowest)  # how far into the feasible side it swung, negative

    found = bisect_kp(lambda kp: overshoot(kp) + 0.1, 0.0, 40.0, tolerance=0.005, max_runs=12)
    assert found.status == "converged"
    assert found.runs[0].violation < 0 < found.runs[1].violation
    assert overshoot(found.kp).item() == pytest.approx(-0.1, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"low": 3.0, "high": 3.0}, "low below high"),
        ({"high": math.inf}, "must be finite"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"max_runs": 1}, "max_runs=1"),
        ({"max_runs": 2.5}, r"max_runs=2\.5 must be a whole number"),
        ({"high": 10**400}, "high=inf must be finite"),
    ],
)
def test_refusals(arguments, word):
    options = {"low": 0.0, "high": 40.0, "tolerance": 0.1} | arguments
    with pytest.raises(ValueError, match=word):
        bisect_kp(lambda kp: kp, **options)


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    found = bisect_kp(
        lambda kp: torch.tensor(kp / 40 - 0.3),
        np.float32(0.0),
        torch.tensor(40.0),
        tolerance=0.02,
        journal=tmp_path / "kp.json",
    )
    assert (found.kp, found.status) == (12.5, "converged")
    assert all(type(number) is float for run in found.runs for number in (run.kp, run.violation))


def test_a_journal_that_cannot_be_written_is_found_out_before_a_run(tmp_path):
    def never(kp):
        raise AssertionError(f"a run with {kp}")

    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        bisect_kp(never, 0.0, 40.0, tolerance=0.1, journal=tmp_path / "file" / "kp.json")


def test_searches_that_share_a_journal_keep_each_other_s_runs(tmp_path):
    journal = tmp_path / "kp.json"

    def outer(kp):
        bisect_kp(lambda kp: kp / 40 - 0.6, 1.0, 41.0, tolerance=0.2, journal=journal)
        return kp / 40 - 0.3

    bisect_kp(outer, 0.0, 40.0, tolerance=0.2, journal=journal)
    kept = {each["kp"] for each in json.loads(journal.read_text())}
    assert {0.0, 40.0, 20.0, 1.0, 41.0, 21.0} <= kept


@pytest.mark.parametrize(
    "text", ["not json", "[1]", '[{"kp": 1}]', '{"kp": 1}', '[{"kp": 0, "violation": NaN}]']
)
def test_another_file_is_not_taken_for_a_journal(tmp_path, text):
    path = tmp_path / "kp.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a journal"):
        bisect_kp(lambda kp: kp - 1, 0.0, 4.0, tolerance=0.1, journal=path)
    assert path.read_text() == text


def test_a_grid_around_the_step_size_of_gradient_ascent_finds_the_best_ki():
    asked = []

    def run(ki, kp):
        asked.append((ki, kp))
        return abs(math.log10(ki / 0.1))

    found = tune.grid_ki(run, 0.01, 5, factor=100, points=9)
    assert [ki for ki, _ in asked] == pytest.approx([10 ** (-4 + i / 2) for i in range(9)])
    assert {kp for _, kp in asked} == {5.0}
    assert (found.ki, found.kp) == (pytest.approx(0.1), 5.0)
    assert found.score == pytest.approx(0.0, abs=1e-12)
    assert not found.at_edge
    assert [each.ki for each in found.runs] == [ki for ki, _ in asked]
    assert tune.grid_ki(lambda ki, _: ki, 0.01, 5).at_edge


def test_a_grid_goes_on_from_its_journal_and_keeps_what_diverged(tmp_path):
    journal, asked = tmp_path / "ki.json", []

    def run(ki, kp):
        asked.append((ki, kp))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return float("nan") if ki > 0.05 else ki

    with pytest.raises(KeyboardInterrupt):
        tune.grid_ki(run, 0.1, 5.0, points=5, journal=journal)
    assert len(json.loads(journal.read_text())) == 3
    found = tune.grid_ki(run, 0.1, 5.0, points=5, journal=journal)
    assert len(asked) == 6  # three, the one that was cut off, and the two that were missing
    assert found.ki == pytest.approx(0.01)
    assert [each.score for each in found.runs][2:] == [math.inf] * 3
    tune.grid_ki(run, 0.1, 5.0, points=5, journal=journal)
    assert len(asked) == 6
    tune.grid_ki(run, 0.1, 6.0, points=5, journal=journal)
    assert len(asked) == 11  # another kp is another run


def test_a_journal_of_the_other_search_is_refused(tmp_path):
    journal = tmp_path / "runs.json"
    tune.bisect_kp(lambda kp: kp / 40 - 0.3, 0.0, 40.0, tolerance=0.02, journal=journal)
    kept = journal.read_bytes()
    with pytest.raises(ValueError, match="is not a journal of this search"):
        tune.grid_ki(lambda ki, _: ki, 0.1, 5.0, journal=journal)
    assert journal.read_bytes() == kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ki": 0.0}, "ki=0.0 must be positive"),
        ({"ki": float("nan")}, "ki=nan must be positive"),
        ({"kp": float("inf")}, "kp=inf must be finite"),
        ({"factor": 1.0}, r"factor=1\.0 must be larger than 1"),
        ({"points": 1}, "points=1 must be a whole number, at least 2"),
        ({"points": 2.5}, r"points=2\.5 must be a whole number, at least 2"),
        ({"ki": 10**400}, "ki=inf must be positive and finite"),
        ({"ki": 1e308}, r"a grid from 1e\+307 to inf is too wide"),
        ({"ki": 1e-320, "factor": 1e10}, r"a grid from 0 to .* is too wide"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        tune.grid_ki(lambda ki, _: ki, **({"ki": 0.1, "kp": 5.0} | change))


@pytest.mark.parametrize("option", ["ki", "kp", "factor"])
@pytest.mark.parametrize("value", ["0.1", True, None, [0.1], torch.ones(2)], ids=repr)
def test_what_is_no_number_is_refused_by_name(option, value):
    with pytest.raises(TypeError, match=f"{option} must be a number"):
        tune.grid_ki(lambda ki, _: ki, **({"ki": 0.1, "kp": 5.0} | {option: value}))


def test_a_grid_without_a_finite_score_says_so():
    with pytest.raises(ValueError, match=r"no run of the grid from ki=0\.01 to 1 at kp=5"):
        tune.grid_ki(lambda *_: float("nan"), 0.1, 5.0)
    with pytest.raises(TypeError, match=r"run\(ki=0\.01\d*, kp=5\.0\) returned None"):
        tune.grid_ki(lambda *_: None, 0.1, 5.0)
