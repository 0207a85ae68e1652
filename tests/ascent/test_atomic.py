"""`ascend` does all of its work or none of it, whatever raises and wherever it does."""

import copy
from types import MappingProxyType

import pytest
import torch
from accelerators import act_as_an_accelerator
from problems import assert_unchanged, problem, snapshot, some_steps

import nupi
from nupi.optim.base import DualOptimizer

DUALS = {
    "conditional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2),
    "velocity": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, init="zero", form="velocity"),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, form="positional"),
    "ascent": lambda p: nupi.NuPI(p, 0.1),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, maximize=True),
}
VIOLATIONS = {
    "dense": {"fair": torch.tensor([1.0, -0.5, 0.25]), "small": torch.tensor([0.5])},
    "indexed": {"fair": nupi.Indexed(torch.tensor([1.0, -0.5]), torch.tensor([2, 0]))},
    "averaged": {"fair": nupi.Averaged(torch.tensor([1.0, -0.5, 0.0]), torch.tensor([2, 1, 0]))},
}


class Injected(Exception):  # noqa: N818
    pass


def the_next_step_is_what_it_would_have_been(make, steps, fail):
    """Two runs of the same steps; in one of them `fail` is tried, and must raise, before the last."""
    results = []
    for failing in (False, True):
        lagrangian, _ = problem()
        dual = make(lagrangian.parameters())
        some_steps(lagrangian, dual, steps)
        if failing:
            before = snapshot(lagrangian, dual)
            fail(lagrangian, dual)
            assert_unchanged(before, lagrangian, dual)
        some_steps(lagrangian, dual, 2, seed=9)
        results.append(snapshot(lagrangian, dual))
    (left, its), (right, others) = results
    assert all(torch.equal(left[name], right[name]) for name in left)
    for slots, theirs in zip(its["state"].values(), others["state"].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(slots[s]), torch.as_tensor(theirs[s])) for s in slots)


@pytest.mark.parametrize("hook", ["register_step_pre_hook", "register_step_post_hook"])
@pytest.mark.parametrize("kind", VIOLATIONS)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_a_hook_that_raises_undoes_the_step(make, steps, kind, hook):
    def fail(lagrangian, dual):
        def raises(*_):
            raise Injected

        handle = getattr(dual, hook)(raises)
        refused = kind == "indexed" and isinstance(dual, torch.optim.Adam)
        with pytest.raises(RuntimeError if refused and "post" in hook else Injected):
            lagrangian.ascend(dual, VIOLATIONS[kind])
        handle.remove()
        assert (lagrangian.multipliers["small"] >= 0).all()

    the_next_step_is_what_it_would_have_been(make, steps, fail)


@pytest.mark.parametrize("where", ["update", "scaled_gains", "move", "ready_state"])
@pytest.mark.parametrize("steps", [0, 2])
def test_an_error_anywhere_inside_the_optimizer_undoes_the_step(where, steps, monkeypatch):
    for count in (1, 2):  # the second group fails after the first has moved
        calls = []

        def fail(lagrangian, dual, count=count, calls=calls):
            whole = getattr(DualOptimizer if where in ("move", "ready_state") else nupi.NuPI, where)

            def sometimes(*args, **kwargs):
                calls.append(where)
                if len(calls) == count:
                    raise Injected
                return whole(*args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(
                    type(dual), where, sometimes if where == "ready_state" else staticmethod(sometimes)
                )
                # A step like the last one does not look for its state again, and one with another mapping is not alike.
                given = VIOLATIONS["dense"]
                with pytest.raises(Injected):
                    lagrangian.ascend(dual, MappingProxyType(given) if where == "ready_state" else given)

        the_next_step_is_what_it_would_have_been(
            lambda p: nupi.NuPI(p, 0.1, 1.0, 0.2, foreach=False), steps, fail
        )


def test_a_gain_of_a_wrong_shape_in_the_second_group_moves_nothing():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2), "b": nupi.Equality(2)})
    groups = [{"params": [lagrangian.get_parameter(name)]} for name in ("a", "b")]
    dual = nupi.NuPI(groups, ki=0.1, kp=1.0)
    violations = {"a": torch.ones(2), "b": torch.ones(2)}
    dual.param_groups[1]["kp"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"kp has shape \(3,\), which does not broadcast"):
        lagrangian.ascend(dual, violations)
    assert not any(m.any() for m in lagrangian.multipliers.values())
    assert not dual.state


@pytest.mark.parametrize("by", ["ascend", "step"])
def test_a_first_step_that_raises_leaves_the_next_one_the_first(by):
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2, init=5.0)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)

    def step():
        if by == "ascend":
            lagrangian.ascend(dual, {"a": torch.ones(2)})
        else:
            lagrangian.get_parameter("a").grad = torch.ones(2)
            dual.step()

    dual.param_groups[0]["kp"] = torch.ones(3)
    with pytest.raises(ValueError, match="kp has shape"):
        step()
    dual.param_groups[0]["kp"] = 1.0
    step()
    assert lagrangian.multipliers["a"].tolist() == pytest.approx([5.1, 5.1])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("ki", float("nan"), "ki must be finite, but nan came"),
        ("ki", torch.tensor(float("inf")), "ki must be finite"),
        ("kp", float("inf"), "kp must be finite"),
        ("lr", -1.0, r"lr must lie in \[0, inf\)"),
        ("nu", 1.0, r"nu must lie in \(-1, 1\)"),
        ("form", "polar", "form must be one of"),
        ("ki", "0.1", "ki must be a number or a tensor"),
    ],
)
def test_a_gain_that_is_written_in_the_middle_of_a_run_is_checked(option, value, message):
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    good, dual.param_groups[0][option] = dual.param_groups[0][option], value
    with pytest.raises((TypeError, ValueError), match=message):
        lagrangian.ascend(dual, {"fair": torch.ones(3)})
    dual.param_groups[0][option] = good
    assert_unchanged(before, lagrangian, dual)
    some_steps(lagrangian, dual, 1)


def test_a_tensor_gain_that_is_written_to_in_place_is_checked():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=torch.tensor([0.1, 0.2]), kp=1.0)
    lagrangian.ascend(dual, {"a": torch.ones(2)})
    dual.param_groups[0]["ki"][1] = torch.nan
    with pytest.raises(ValueError, match="ki must be finite"):
        lagrangian.ascend(dual, {"a": torch.ones(2)})
    assert torch.isfinite(lagrangian.multipliers["a"]).all()


@pytest.mark.parametrize("blind", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_a_finite_violation_times_a_gain_does_not_overflow_a_multiplier(make, blind, monkeypatch):
    lagrangian, _ = problem()
    dual = make(lagrangian.parameters())
    some_steps(lagrangian, dual)
    for group in dual.param_groups:
        group["lr"] = 1e30
    if blind:
        act_as_an_accelerator(monkeypatch)
    before = snapshot(lagrangian, dual)
    violations = {"fair": torch.tensor([1e20, 0.0, -3e38])}
    if isinstance(dual, torch.optim.Adam):
        violations["fair"] *= 1e3  # its step is bounded by lr, but the square of this error is not finite
        violations["fair"][2] = 0.0
    if blind:
        try:
            lagrangian.ascend(dual, violations)
        except nupi.NonFiniteViolationError:
            assert isinstance(dual, torch.optim.Adam), "only torch's own keep numbers on the host"
        else:
            with pytest.raises(nupi.NonFiniteViolationError, match="'fair'"):
                lagrangian.check()
    else:
        with pytest.raises(nupi.NonFiniteMultiplierError, match=r"'fair', which are finite.*lower the gains"):
            lagrangian.ascend(dual, violations)
    for group in dual.param_groups:
        group["lr"] = 1.0 if isinstance(dual, (nupi.NuPI, nupi.PID)) else 0.1
    assert_unchanged(before, lagrangian, dual)
    for tensor in (*lagrangian.multipliers.values(), *(v for s in dual.state.values() for v in s.values())):
        assert torch.isfinite(torch.as_tensor(tensor)).all()


def test_a_smoothed_error_does_not_overflow():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=1e-3, nu=0.5)
    refused = 0
    for violation in (3e38, -3e38, 3e38):
        try:
            lagrangian.ascend(dual, {"a": torch.tensor(violation)})
        except nupi.NonFiniteMultiplierError:
            refused += 1
        assert all(torch.isfinite(v).all() for state in dual.state.values() for v in state.values())
    assert refused


def test_a_large_state_is_remembered_when_the_next_errors_are_small():
    """xi holds 3e37; ten times that is not a float32, though the error that comes then is 0."""
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=1.0)
    lagrangian.ascend(dual, {"a": torch.tensor(3e37)})
    dual.param_groups[0]["kp"] = 20.0
    before = snapshot(lagrangian, dual)
    for _ in range(2):
        with pytest.raises(nupi.NonFiniteMultiplierError):
            lagrangian.ascend(dual, {"a": torch.tensor(0.0)})
        assert_unchanged(before, lagrangian, dual)
    again = nupi.NuPI(lagrangian.parameters(), ki=1e-3, kp=20.0)
    again.load_state_dict(dual.state_dict())
    for twin in (again, copy.deepcopy((lagrangian, dual))[1]):
        assert twin.may_overflow


def test_a_live_multiplier_given_as_a_violation_is_read_before_it_moves():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2, init=1.0), "b": nupi.Equality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=2.0)
    lagrangian.ascend(dual, {"a": torch.ones(2), "b": lagrangian.multipliers["a"]})
    assert lagrangian.multipliers["a"].tolist() == [3.0, 3.0]
    assert lagrangian.multipliers["b"].tolist() == [2.0, 2.0]
    rows = nupi.Indexed(lagrangian.multipliers["a"][1:], torch.tensor([0]))
    lagrangian.ascend(dual, {"a": torch.ones(2), "b": rows})
    assert lagrangian.multipliers["b"].tolist() == [8.0, 2.0]


def test_a_refused_step_leaves_a_sparse_momentum_sparse():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(3)})
    dual = torch.optim.SGD(lagrangian.parameters(), 0.1, momentum=0.9, maximize=True)
    theta = lagrangian.get_parameter("a")
    theta.grad = torch.tensor([1.0, 0.0, 0.0]).to_sparse()
    dual.step()
    theta.grad = None
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"a": nupi.Indexed(torch.tensor([torch.nan]), torch.tensor([1]))})
    assert dual.state[theta]["momentum_buffer"].is_sparse


@pytest.mark.parametrize("form", ["positional", "conditional", "velocity"])
def test_kp_to_zero_and_back_keeps_what_was_integrated_in_between(form):
    """Against a loop in plain numbers. Of the positional form, theta = integral + kp xi at every step."""
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, form=form)
    integral, xi, theta = -1.0, None, 0.0
    for kp in (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0):
        dual.param_groups[0]["kp"] = kp
        lagrangian.ascend(dual, {"a": torch.tensor(1.0)})
        integral, xi = integral + 0.1, 1.0
        theta = integral + kp * xi if form == "positional" else theta + 0.1
        assert lagrangian.multipliers["a"].item() == pytest.approx(theta)


def test_beta_to_zero_and_back_does_not_replay_old_momentum():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.UnifiedMomentum(lagrangian.parameters(), 0.1, 0.9)
    theta = phi = 0.0
    for beta, error in ((0.9, 1.0), (0.9, 1.0), (0.0, 1.0), (0.0, 0.0), (0.9, 0.0), (0.9, 0.0)):
        dual.param_groups[0]["beta"] = beta
        lagrangian.ascend(dual, {"a": torch.tensor(error)})
        phi = beta * phi + 0.1 * error
        theta += phi
        assert lagrangian.multipliers["a"].item() == pytest.approx(theta)
    assert phi == 0.0


def test_a_listener_hears_of_steps_that_were_taken_and_of_no_others():
    lagrangian, dual = problem()
    heard = []
    handle = lagrangian.listen(heard.append)
    lagrangian.ascend(dual, {"fair": torch.ones(3)})
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"fair": torch.full((3,), torch.nan)})
    (step,) = heard
    assert step.dual is dual
    assert [move.name for move in step.moves] == ["fair"]
    assert torch.equal(step.moves[0].multiplier, lagrangian.multipliers["fair"])
    assert torch.equal(step.moves[0].error, torch.ones(3))
    assert not copy.deepcopy(lagrangian)._listeners
    handle.remove()
    handle.remove()
    lagrangian.ascend(dual, {"fair": torch.ones(3)})
    assert len(heard) == 1
    with pytest.raises(TypeError, match="callback must be a function"):
        lagrangian.listen(None)


def test_a_step_within_a_step_does_not_take_the_place_of_what_the_outer_one_keeps():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before, inner = snapshot(lagrangian, dual), []

    def ascends_and_raises(*_):
        if not inner:
            inner.append(1)
            lagrangian.ascend(dual, {"fair": torch.full((3,), 5.0)})
            raise Injected

    handle = dual.register_step_post_hook(ascends_and_raises)
    with pytest.raises(Injected):
        lagrangian.ascend(dual, {"fair": torch.ones(3)})
    handle.remove()
    assert inner
    assert_unchanged(before, lagrangian, dual)


def test_those_who_listen_explain_a_refusal_and_need_not():
    lagrangian, dual = problem()

    class Explains:
        def __call__(self, _):
            pass

        def explain(self, names):
            return f"Seen of {', '.join(map(repr, names))}: nothing."

    lagrangian.listen(lambda _: None)
    lagrangian.listen(Explains())
    with pytest.raises(nupi.NonFiniteViolationError, match=r"Seen of 'fair': nothing\."):
        lagrangian.ascend(dual, {"fair": torch.full((3,), torch.nan)})
