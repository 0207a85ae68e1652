"""What the front ends share: averages over micro-batches, verdicts over data sets, numbers to log, late imports."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nupi
from nupi.integrations.accumulation import Accumulator
from nupi.integrations.evaluation import Evaluation, rows_of
from nupi.integrations.numbers import Numbers


def problem(size=3, **others):
    return nupi.Lagrangian({"c": nupi.Inequality(size), **others})


def moved_by(lagrangian, violation):
    """The error that reaches the multipliers: a step of gradient ascent from 0, unbounded below."""
    free = nupi.Lagrangian({"c": nupi.Equality(lagrangian.constraints["c"].shape)})
    free.ascend(torch.optim.SGD(free.parameters(), lr=1.0, maximize=True), {"c": violation})
    return free.multipliers["c"].clone()


batches = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=4)


@given(batches)
def test_tensors_are_averaged(rows):
    lagrangian = problem()
    seen = Accumulator(lagrangian.constraints)
    for row in rows:
        seen.add({"c": torch.tensor(row, requires_grad=True)})
    expected = torch.tensor(rows, dtype=torch.float64).mean(0)
    torch.testing.assert_close(
        moved_by(lagrangian, seen.taken()["c"]).double(), expected, atol=1e-5, rtol=1e-5
    )
    assert seen.taken() == {}


def test_averaged_violations_are_joined_by_their_counts():
    seen = Accumulator(problem().constraints)
    seen.add({"c": nupi.Averaged(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([2, 1, 0]))})
    seen.add({"c": nupi.Averaged(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([4, 3, 0]))})
    moved = moved_by(problem(), seen.taken()["c"])
    torch.testing.assert_close(moved, torch.tensor([3 / 6, 2 / 4, 0.0]))


def test_rows_of_indexed_violations_are_divided_as_the_loss_is():
    seen = Accumulator(problem().constraints)
    seen.add({"c": nupi.Indexed(torch.tensor([1.0, 2.0]), torch.tensor([0, 2]))})
    seen.add({"c": nupi.Indexed(torch.tensor([5.0]), torch.tensor([2]))})
    moved = moved_by(problem(), seen.taken()["c"])
    torch.testing.assert_close(moved, torch.tensor([0.5, 0.0, 3.5]))


def test_the_hard_measure_of_a_measured_violation_counts():
    seen = Accumulator(problem().constraints)
    for soft, hard in ((9.0, 1.0), (9.0, 2.0)):
        seen.add({"c": nupi.Measured(torch.full((3,), soft), torch.full((3,), hard))})
    torch.testing.assert_close(moved_by(problem(), seen.taken()["c"]), torch.full((3,), 1.5))


def test_a_constraint_that_some_micro_batches_lack_has_the_mean_of_the_others():
    seen = Accumulator(problem().constraints)
    seen.add({"c": torch.ones(3)})
    seen.add({})
    seen.add({"c": torch.full((3,), 2.0)})
    torch.testing.assert_close(moved_by(problem(), seen.taken()["c"]), torch.full((3,), 1.5))


def test_kinds_that_have_no_average_are_refused_by_name():
    seen = Accumulator(problem().constraints)
    seen.add({"c": torch.ones(3)})
    seen.add({"c": nupi.Averaged(torch.ones(3), torch.ones(3))})
    with pytest.raises(TypeError, match="'c' in 2 micro-batches are Averaged, a tensor"):
        seen.taken()
    band = Accumulator({"c": nupi.Band(3, tolerance=0.1)})
    for _ in range(2):
        band.add({"c": nupi.Indexed(torch.ones(1), torch.tensor([0]))})
    with pytest.raises(TypeError, match=r"Indexed of Band\(3, tolerance=0.1\)"):
        band.taken()


def test_a_verdict_counts_rows_and_says_what_was_not_measured():
    lagrangian = problem(2, h=nupi.Equality(), b=nupi.Band(tolerance=0.5))
    evaluation = Evaluation(lagrangian, {"c": 0.1, "h": 0.3, "b": 0.0})
    every = {"h": torch.tensor([-0.2]), "b": torch.tensor([-0.4])}
    evaluation.add({"c": torch.tensor([0.0, -1.0]), **every}, rows=3, loss=torch.tensor(1.0))
    evaluation.add({"c": torch.tensor([0.3, -1.0]), **every}, rows=1, loss=torch.tensor(2.0))
    numbers = evaluation.metrics()
    assert numbers["c/violation"] == pytest.approx(0.3 / 4)
    assert numbers["h/violation"] == pytest.approx(0.2)
    assert numbers["b/violation"] == pytest.approx(-0.1)
    assert numbers["feasible"] == 1.0
    assert numbers["violation"] == pytest.approx(0.2)
    assert numbers["score"] == pytest.approx(5 / 4)
    evaluation.clear()
    evaluation.add({"c": torch.tensor([0.0, 0.0])}, rows=1)
    numbers = evaluation.metrics(loss=1.0)
    assert (numbers["feasible"], numbers["h/violation"]) == (0.0, float("inf"))
    evaluation.clear()
    evaluation.add({"c": torch.tensor([0.0, float("nan")]), **every}, rows=1)
    assert evaluation.metrics()["feasible"] == 0.0


def test_a_verdict_averages_rows_that_came_several_times_and_refuses_unknown_names():
    evaluation = Evaluation(problem(2))
    evaluation.add({"c": nupi.Indexed(torch.tensor([1.0, -1.0]), torch.tensor([0, 1]))}, rows=2)
    evaluation.add({"c": nupi.Indexed(torch.tensor([-2.0]), torch.tensor([0]))}, rows=1)
    assert evaluation.metrics()["violation"] == pytest.approx(-0.5)
    with pytest.raises(KeyError, match="'d', which is not a constraint here"):
        evaluation.add({"d": torch.zeros(2)}, rows=1)


def test_numbers_are_means_since_they_were_last_taken():
    lagrangian = problem(2, b=nupi.Band(tolerance=0.5))
    numbers = Numbers(lagrangian)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    for value in (1.0, 3.0):
        lagrangian.ascend(dual, {"c": torch.tensor([value, 0.0]), "b": torch.tensor([-2.0])})
    found = numbers.taken()
    assert found["nupi/c/violation"] == pytest.approx(1.0)
    assert found["nupi/c/violation_max"] == pytest.approx(2.0)
    assert found["nupi/b/violation"] == pytest.approx(1.5)  # beyond the band
    assert found["nupi/c/multiplier"] == pytest.approx(0.2)
    assert found["nupi/c/ki"] == pytest.approx(0.1)
    again = numbers.taken()
    assert "nupi/c/violation" not in again
    assert again["nupi/c/multiplier"] == found["nupi/c/multiplier"]
    assert again["nupi/c/ki"] == found["nupi/c/ki"]


def test_a_batch_has_as_many_rows_as_its_first_tensor():
    assert rows_of({"name": "x", "x": torch.zeros(5, 2), "y": torch.zeros(7)}) == 5
    assert rows_of([torch.zeros(()), (torch.zeros(3), 1)]) == 3
    assert rows_of("nothing") == 1


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_other_packages_are_imported_only_with_their_front_end():
    code = """
import sys, nupi.integrations
assert not {"transformers", "lightning", "pytorch_lightning"} & set(sys.modules)
for name, front in (("transformers", "transformers"), ("lightning", "lightning"), ("pytorch_lightning", "lightning")):
    sys.modules[name] = None  # as if it were not installed
for front in ("transformers", "lightning"):
    try:
        __import__(f"nupi.integrations.{front}")
    except ImportError as error:
        assert f"pip install nupi[{front}]" in str(error), error
    else:
        raise AssertionError(front)
"""
    found = run(code)
    assert found.returncode == 0, found.stderr


def test_a_mixin_behind_its_base_is_refused():
    from nupi.integrations.duals import check_order

    mixin, base = type("Mixin", (), {}), type("Base", (), {})
    check_order(type("Right", (mixin, base), {}), mixin, "Base")
    wrong = type("Wrong", (base, mixin), {})
    with pytest.raises(TypeError, match=r"put it first: class Wrong\(Mixin, Base\)"):
        check_order(wrong, mixin, "Base")
