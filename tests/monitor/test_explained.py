"""What the record shows stands in the error that ends a run, and gradients tell infeasible from slow."""

import copy
import pickle
import warnings

import pytest
import torch
from accelerators import act_as_an_accelerator

import nupi


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        yield


def diverging(steps=400, monitored=True):
    """min x^2 / 2 with x = 1 under a ki that is too large: until the violation is not finite any more."""
    x = torch.zeros(1, requires_grad=True)
    lagrangian = nupi.Lagrangian({"level": nupi.Equality(), "other": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=90.0)
    monitor = nupi.Monitor(lagrangian) if monitored else None
    primal = torch.optim.SGD([x], lr=0.1)
    for _ in range(steps):
        violations = {"level": 1 - x, "other": x * 0 - 1}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(0.5 * x.square().sum(), violations).backward()
        primal.step()
    return monitor


def test_the_error_says_that_the_run_diverged_and_what_to_change():
    with pytest.raises(nupi.NonFiniteViolationError) as caught:
        diverging()
    said = str(caught.value)
    assert "The record shows: 'level' diverges" in said
    assert "Set ki to about" in said or "Lower ki from 90" in said
    assert said.index("diverges") < said.index("If that does not explain it")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.names) == (said, caught.value.names)


def test_without_a_monitor_the_error_is_as_it_was():
    with pytest.raises(nupi.NonFiniteViolationError) as caught:
        diverging(monitored=False)
    assert "record" not in str(caught.value)


def a_steady_run(explain=None):
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(2), "b": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    monitor = nupi.Monitor(lagrangian)
    if explain is not None:
        monitor.explain = explain
    for t in range(40):
        lagrangian.ascend(dual, {"a": torch.tensor([-0.5, 0.25 - 0.005 * t]), "b": torch.zeros(1)})
    return lagrangian, dual


def test_a_nan_out_of_the_blue_is_told_with_the_last_numbers():
    lagrangian, dual = a_steady_run()
    with pytest.raises(nupi.NonFiniteViolationError) as caught:
        lagrangian.ascend(dual, {"a": torch.tensor([1.0, torch.nan])})
    assert "nothing wrong with 'a' up to step 40, where the largest violation was -0.5" in str(caught.value)
    assert "a mean over an empty group" in str(caught.value)


def test_an_overflowing_multiplier_is_explained_too():
    lagrangian, dual = a_steady_run()
    dual.param_groups[0]["ki"] = 1e30
    with pytest.raises(nupi.NonFiniteMultiplierError, match="nothing wrong with 'b'"):
        lagrangian.ascend(dual, {"b": torch.full((1,), 1e20)})


def test_what_the_device_refused_is_explained_when_it_is_reported(monkeypatch):
    lagrangian, dual = a_steady_run()
    act_as_an_accelerator(monkeypatch)
    lagrangian.ascend(dual, {"b": torch.full((1,), torch.nan)})
    with pytest.raises(nupi.NonFiniteViolationError, match="nothing wrong with 'b' up to step 4"):
        lagrangian.check()


def test_an_explanation_that_fails_does_not_hide_the_error():
    def fails(names):
        raise KeyError(names)

    lagrangian, dual = a_steady_run(fails)
    with pytest.raises(nupi.NonFiniteViolationError, match="'b' are not finite"):
        lagrangian.ascend(dual, {"b": torch.full((1,), torch.nan)})


def test_a_band_is_recorded_as_the_two_inequalities_that_it_is():
    """Against the violations and multipliers themselves: h - tolerance and -h - tolerance, in turn."""
    lagrangian = nupi.Lagrangian({"gap": nupi.Band(2, tolerance=0.1), "c": nupi.Inequality(upper=3.0)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5)
    monitor = nupi.Monitor(lagrangian)
    h = torch.tensor([0.5, -0.3])
    for _ in range(5):
        lagrangian.ascend(dual, {"gap": h, "c": torch.ones(1)})
    group = monitor.record.columns.groups["gap"]
    last = [
        (one.place, one.violation[-1].item(), one.multiplier[-1].item())
        for one in monitor.record.series(group)
    ]
    expected = torch.stack([h - 0.1, -h - 0.1], -1).reshape(-1)
    assert [place for place, _, _ in last] == ["gap[0, 0]", "gap[0, 1]", "gap[1, 0]", "gap[1, 1]"]
    assert [e for _, e, _ in last] == pytest.approx(expected.tolist())
    assert [theta for _, _, theta in last] == pytest.approx((2.5 * expected.clamp(min=0)).tolist())
    assert [group.index_of(place) for place, _, _ in last] == [0, 1, 2, 3]
    assert monitor.record.columns.groups["c"].upper == 3.0


# --- gradients --------------------------------------------------------------------------------------------------------


def trained(violations_of, x, lr, steps=600, ki=0.1, names=("c",), size=()):
    """A run on f(x) = |x|^2 / 20, its monitor, and the violations of where it ended, with their graph."""
    lagrangian = nupi.Lagrangian({name: nupi.Inequality(*size) for name in names})
    dual = nupi.NuPI(lagrangian.parameters(), ki=ki)
    monitor = nupi.Monitor(lagrangian)
    primal = torch.optim.SGD([x], lr=lr)
    for _ in range(steps):
        violations = violations_of(x)
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(0.05 * x.square().sum(), violations).backward()
        primal.step()
    return monitor, violations_of(x)


def test_a_measure_that_saturates_below_its_target_is_infeasible_and_its_gradient_small():
    x = torch.tensor([0.5, 0.5], requires_grad=True)
    monitor, violations = trained(lambda x: {"c": 1.3 - torch.sigmoid(x.sum())[None]}, x, 0.2)
    (finding,) = monitor.diagnose(violations)
    assert finding.kind == "infeasible"
    # By hand: |grad| |x| with the derivative of the sigmoid.
    share = torch.sigmoid(x.detach().sum())
    reach = (share * (1 - share) * 2**0.5 * x.detach().norm()).item()
    assert f"would lower the violation of {1.3 - share.item():.3g} by {reach:.3g}" in finding.evidence


def test_two_constraints_that_contradict_each_other_are_opposed():
    x = torch.tensor([0.3, 2.0], requires_grad=True)

    def both(x):
        return {"low": x[:1] + 1, "aside": x[1:].square() - 1, "high": 1 - x[:1]}

    monitor, violations = trained(both, x, 0.2, names=("low", "aside", "high"))
    findings = {finding.constraint: finding for finding in monitor.diagnose(violations)}
    assert findings.keys() == {"low", "high"}
    assert all(finding.kind == "infeasible" for finding in findings.values())
    for name, opponent in (("low", "high"), ("high", "low")):
        said = findings[name].evidence
        assert f"push the other way, '{opponent}' most of all (the cosine of the gradients is -1.00)" in said


@pytest.mark.parametrize("idle", [1, 40])
def test_what_opposes_a_constraint_of_its_own_group_is_named_by_its_place(idle):
    """Of a group that is too large to look at one by one, the group is named."""
    x = torch.tensor([0.3, 2.0], requires_grad=True)
    monitor, violations = trained(
        lambda x: {"c": torch.cat([x[:1] + 1, x[1:].expand(idle) - 9, 1 - x[:1]])},
        x,
        0.2,
        size=(idle + 2,),
    )
    (finding,) = monitor.diagnose(violations)
    assert (finding.kind, finding.constraint) == ("infeasible", "c[0]")
    opponent = "c[2]" if idle == 1 else "c"
    assert (
        f"push the other way, '{opponent}' most of all (the cosine of the gradients is -1.00)"
        in finding.evidence
    )


def test_a_model_that_hardly_moves_is_slow_and_not_infeasible():
    """The record alone cannot tell: the multiplier grows, and the violation does not answer."""
    x = torch.full((3,), 2.0, requires_grad=True)
    monitor, violations = trained(lambda x: {"c": x.mean()[None] - 1}, x, 1e-8)
    assert [finding.kind for finding in monitor.diagnose()] == ["infeasible"]
    (finding,) = monitor.diagnose(violations)
    assert (finding.kind, finding.severity) == ("slow", "moderate")
    assert "step size of the model" in finding.advice
    violations["c"].sum().backward()  # the graph is still there


def test_a_constraint_that_does_not_depend_on_the_parameters_says_so():
    x = torch.full((3,), 2.0, requires_grad=True)
    with pytest.warns(UserWarning, match="'free' has no gradient"):
        monitor, violations = trained(
            lambda x: {"free": torch.full((1,), 0.3), "c": x.mean()[None] - 9}, x, 0.1, names=("free", "c")
        )
    (finding,) = [f for f in monitor.diagnose(violations) if f.constraint == "free"]
    assert finding.kind == "infeasible"
    assert "it does not depend on the parameters" in finding.evidence


def test_violations_without_a_graph_are_refused():
    x = torch.full((3,), 2.0, requires_grad=True)
    monitor, violations = trained(lambda x: {"c": x.mean()[None] - 1}, x, 1e-8, steps=60)
    with pytest.raises(ValueError, match="no violation has a graph"):
        monitor.diagnose({"c": violations["c"].detach()})
    squared = {"c": (x.square().mean() - 1)[None]}
    squared["c"].sum().backward()
    with pytest.raises(ValueError, match="before backward"):
        monitor.diagnose(squared)


def test_a_copied_lagrangian_does_not_ask_the_listeners_of_the_first():
    lagrangian, _ = a_steady_run()
    copied = copy.deepcopy(lagrangian)
    dual = nupi.NuPI(copied.parameters(), ki=0.1)
    with pytest.raises(nupi.NonFiniteViolationError) as caught:
        copied.ascend(dual, {"b": torch.full((1,), torch.nan)})
    assert "record" not in str(caught.value)
