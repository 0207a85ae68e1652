"""A non-finite violation never reaches a multiplier: refused on the host, or undone on the device."""

import copy
import pickle

import pytest
import torch
from accelerators import act_as_an_accelerator
from hypothesis import given
from hypothesis import strategies as st
from problems import assert_unchanged, problem, snapshot, some_steps

import nupi
from nupi.ascent import Refusals

BAD = [float("nan"), float("inf"), float("-inf")]
OPTIMIZERS = {
    "NuPI": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, init="bumpless"),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, form="positional"),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, maximize=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, maximize=True),
}


@pytest.fixture
def blind(monkeypatch):
    """Make the CPU behave as an accelerator does: the host may not look at a value."""
    act_as_an_accelerator(monkeypatch)


def a_problem(make):
    lagrangian, _ = problem()
    return lagrangian, make(lagrangian.parameters())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_host_refuses_by_name_and_all_state_stays(make, bad):
    lagrangian, dual = a_problem(make)
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    violations = {"small": torch.tensor(1.0), "fair": torch.tensor([0.0, bad, 1.0])}
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair' are not finite") as caught:
        lagrangian.ascend(dual, violations)
    assert caught.value.names == ("fair",)
    assert_unchanged(before, lagrangian, dual)


def test_a_refusal_before_the_first_step_leaves_no_state_behind():
    lagrangian, dual = problem()
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"fair": torch.full((3,), float("nan"))})
    assert not dual.state


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3))
def test_finite_violations_are_never_refused_even_if_their_sum_overflows(values):
    lagrangian = nupi.Lagrangian({"h": nupi.Equality(3)})
    lagrangian.ascend(nupi.NuPI(lagrangian.parameters(), ki=0.5), {"h": torch.tensor(values)})
    assert torch.isfinite(lagrangian.multipliers["h"]).all()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.usefixtures("blind")
def test_the_device_undoes_what_the_host_could_not_refuse_and_reports_later(make, bad):
    lagrangian, dual = a_problem(make)
    some_steps(lagrangian, dual)
    lagrangian.check()
    before = snapshot(lagrangian, dual)
    violations = {"small": torch.tensor(1.0), "fair": torch.tensor([0.0, bad, 1.0])}
    lagrangian.ascend(dual, violations)  # no error yet: the host has not looked
    assert_unchanged(before, lagrangian, dual)
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.ascend(dual, {"small": torch.tensor(1.0)})
    assert_unchanged(before, lagrangian, dual)
    lagrangian.ascend(dual, {"small": torch.tensor(1.0)})  # reported once, then on with it
    lagrangian.check()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_good_steps_on_a_device_are_the_hosts(make, monkeypatch):
    here, dual = a_problem(make)
    some_steps(here, dual, 5)
    act_as_an_accelerator(monkeypatch)
    there, its_dual = a_problem(make)
    some_steps(there, its_dual, 5)
    assert_unchanged(snapshot(here, dual), there, its_dual)


@pytest.mark.usefixtures("blind")
def test_rows_are_undone_on_the_device_too():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    values = torch.tensor([float("inf"), 1.0])
    lagrangian.ascend(dual, {"fair": nupi.Indexed(values, torch.tensor([2, 0]))})
    assert_unchanged(before, lagrangian, dual)
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.check()


def test_a_compiled_ascend_protects_the_multipliers_and_check_reports():
    torch._dynamo.reset()
    lagrangian, dual = problem()
    ascend = torch.compile(lagrangian.ascend, fullgraph=True, backend="eager")
    ascend(dual, {"fair": torch.ones(3)})
    ascend(dual, {"fair": torch.ones(3)})
    before = snapshot(lagrangian, dual)
    ascend(dual, {"fair": torch.tensor([1.0, float("nan"), 1.0])})
    assert_unchanged(before, lagrangian, dual)
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.check()


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("index", [3, -1])
def test_an_index_out_of_range_is_refused_on_the_device_too(index):
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    lagrangian.ascend(dual, {"fair": nupi.Indexed(torch.ones(2), torch.tensor([0, index]))})
    assert_unchanged(before, lagrangian, dual)
    with pytest.raises(nupi.NonFiniteViolationError, match=r"'fair'.*index out of range"):
        lagrangian.check()


@pytest.mark.usefixtures("blind")
def test_a_mask_of_rows_seen_survives_a_refused_dense_step():
    lagrangian, dual = problem()
    some = nupi.Indexed(torch.ones(1), torch.tensor([1]))
    lagrangian.ascend(dual, {"fair": some})
    lagrangian.ascend(dual, {"fair": some})
    before = snapshot(lagrangian, dual)
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.ascend(dual, {"fair": torch.tensor([1.0, float("nan"), 0.0])})
    assert_unchanged(before, lagrangian, dual)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(
    "make", [lambda p: nupi.NuPI(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, maximize=True)]
)
def test_an_optimizer_without_state_is_not_looked_at_for_ever(make, monkeypatch):
    lagrangian, dual = a_problem(make)
    looks = []
    monkeypatch.setattr("nupi.ascent.step._refuse_non_finite", looks.append)
    some_steps(lagrangian, dual, 5)
    assert not looks


@pytest.mark.usefixtures("blind")
def test_every_first_step_is_looked_at_until_one_is_taken():
    lagrangian, dual = a_problem(OPTIMIZERS["NuPI"])
    for _ in range(3):
        with pytest.raises(nupi.NonFiniteViolationError):
            lagrangian.ascend(dual, {"fair": torch.full((3,), float("nan"))})
        assert not dual.state


@pytest.mark.usefixtures("blind")
def test_what_is_refused_while_a_report_is_on_its_way_is_reported_later(monkeypatch):
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    lagrangian.check()
    on_its_way, arrives = Refusals._arrived, False
    monkeypatch.setattr(
        Refusals, "_arrived", lambda refusals, wait: on_its_way(refusals, wait=wait) if arrives else False
    )
    lagrangian.ascend(dual, {"small": torch.tensor(float("nan"))})
    lagrangian.ascend(dual, {"fair": torch.full((3,), float("nan"))})
    arrives = True
    with pytest.raises(nupi.NonFiniteViolationError, match="'small'"):
        lagrangian.ascend(dual, {"small": torch.tensor(1.0)})
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.check()
    lagrangian.check()


@pytest.mark.usefixtures("blind")
def test_a_check_waits_for_what_is_on_its_way_and_a_step_does_not():
    class Arrival:
        here = False

        def query(self):
            return self.here

        def synchronize(self):
            self.here = True

    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    lagrangian.check()
    lagrangian.ascend(dual, {"small": torch.tensor(float("nan"))})
    lagrangian._refusals._arrival = Arrival()
    lagrangian.ascend(dual, {"small": torch.tensor(1.0)})
    with pytest.raises(nupi.NonFiniteViolationError, match="'small'"):
        lagrangian.check()


@pytest.mark.usefixtures("blind")
def test_a_first_step_is_looked_at_wherever_it_is():
    lagrangian, dual = problem()
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.ascend(dual, {"fair": torch.full((3,), float("nan"))})
    assert not dual.state


@pytest.mark.parametrize("name", ["NuPI", "positional", "PID", "momentum"])
def test_a_compiled_first_step_that_is_refused_was_no_step(name):
    """Nothing can be looked at, and the state made by the refused step must not count as begun."""
    torch._dynamo.reset()
    errors = [torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.5, 1.0, -0.5]), torch.tensor([0.2, 0.1, 0.3])]
    plain, its_dual = a_problem(OPTIMIZERS[name])
    for error in errors:
        plain.ascend(its_dual, {"fair": error})
    lagrangian, dual = a_problem(OPTIMIZERS[name])
    ascend = torch.compile(lagrangian.ascend, fullgraph=True, backend="eager")
    ascend(dual, {"fair": torch.full((3,), float("nan"))})
    ascend(dual, {"fair": torch.full((3,), float("nan"))})
    ascend(dual, {"fair": errors[0]})
    ascend(dual, {"fair": torch.full((3,), float("inf"))})
    for error in errors[1:]:
        ascend(dual, {"fair": error})
    torch.testing.assert_close(lagrangian.multipliers["fair"], plain.multipliers["fair"])


BEGIN_ABOVE_ZERO = {
    "Adam": lambda p: torch.optim.Adam(p, 0.1, maximize=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1, maximize=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, maximize=True),
    "dampened": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.9, maximize=True),
}


@pytest.mark.parametrize("make", BEGIN_ABOVE_ZERO.values(), ids=BEGIN_ABOVE_ZERO)
def test_optimizers_of_torch_refuse_a_first_step_as_eager_code_does_where_it_is_compiled(make):
    torch._dynamo.reset()
    errors = torch.tensor([[1.0, -1.0, 0.5], [0.5, 1.0, -0.5], [0.2, 0.1, 0.3]])
    (plain, its_dual), (lagrangian, dual) = a_problem(make), a_problem(make)
    ascend = torch.compile(lambda error: lagrangian.ascend(dual, {"fair": error}), backend="eager")
    for error in errors:
        plain.ascend(its_dual, {"fair": error})
        with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
            ascend(torch.tensor([1.0, torch.nan, 1.0]))
        ascend(error)
    assert torch.equal(lagrangian.multipliers["fair"], plain.multipliers["fair"])


def test_what_a_compiled_step_refused_is_reported_by_the_next_eager_one():
    torch._dynamo.reset()
    lagrangian, dual = problem()
    ascend = torch.compile(lagrangian.ascend, fullgraph=True, backend="eager")
    ascend(dual, {"fair": torch.ones(3)})
    ascend(dual, {"fair": torch.full((3,), float("nan"))})
    with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
        lagrangian.ascend(dual, {"fair": torch.ones(3)})
    lagrangian.ascend(dual, {"fair": torch.ones(3)})


@pytest.mark.usefixtures("blind")
def test_a_problem_can_be_copied_while_a_look_is_under_way():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual, 2)
    for twin in (copy.deepcopy(lagrangian), pickle.loads(pickle.dumps(lagrangian))):
        assert torch.equal(twin.multipliers["fair"], lagrangian.multipliers["fair"])
        twin.check()


@pytest.mark.parametrize("kind", ["dense", "indexed"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: nupi.NuPI(p, 1e39),
        lambda p: nupi.NuPI(p, 0.1, 1e39, form="positional"),
        lambda p: nupi.NuPI([{"params": [each], "lr": 1e30} for each in p], 1e30, 1.0),
        lambda p: nupi.PID(p, 1e39, 0.1, 0.1),
        lambda p: nupi.UnifiedMomentum(p, 1e39, 0.5),
        lambda p: torch.optim.SGD(p, 1e39, maximize=True),
    ],
)
def test_a_gain_beyond_the_range_of_float32_is_refused_as_an_overflow(make, kind):
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2), "b": nupi.Equality(2)})
    dual = make(lagrangian.parameters())
    seen = torch.ones(2) if kind == "dense" else nupi.Indexed(torch.ones(1), torch.tensor([1]))
    with pytest.raises(nupi.NonFiniteMultiplierError, match=r"'a', 'b', which are finite.*lower the gains"):
        lagrangian.ascend(dual, {"a": seen, "b": seen})
    assert not any(m.any() for m in lagrangian.multipliers.values())
    assert not dual.state
