"""One coefficient for one metric: it brings the metric to its target, from either side, and can be saved."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import nupi


def run(coefficient, steps, x=None):
    """min (x - 3)^2 with a coefficient on the metric x, by gradient descent written out."""
    x = torch.tensor(0.0, dtype=torch.float64) if x is None else x
    for _ in range(steps):
        beta = coefficient.update(x)
        x = x - 0.05 * (2 * (x - 3) + beta)
    return x


@pytest.mark.parametrize(
    ("target", "end"),
    [
        ({"at": 1.0}, 1.0),
        ({"at": 4.0}, 4.0),
        ({"at_most": 1.0}, 1.0),
        ({"at_least": 4.0}, 4.0),
        ({"at_most": 5.0}, 3.0),
    ],
)
def test_the_metric_comes_to_its_target(target, end):
    coefficient = nupi.Coefficient(**target, steps=100)
    x = run(coefficient, 600)
    assert abs(float(x) - end) < 0.02
    # At the end the two pulls balance: beta = -2 (x - 3).
    assert float(coefficient.value) == pytest.approx(-2 * (end - 3), abs=0.1)


def test_a_checkpoint_goes_on_bit_for_bit():
    coefficient = nupi.Coefficient(at=1.0, steps=50)
    x = run(coefficient, 20)
    file = io.BytesIO()
    torch.save(coefficient.state_dict(), file)
    file.seek(0)
    again = nupi.Coefficient(at=1.0, steps=50)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(coefficient, 20, x), run(again, 20, x))
    assert torch.equal(coefficient.value, again.value)


LOG = {"at_most": 2.0, "steps": 50, "log": True}


@pytest.mark.parametrize(
    "other", [{"at_most": 2.0, "steps": 50}, {"at_least": 2.0, "steps": 50, "log": True}]
)
def test_a_checkpoint_whose_multiplier_means_something_else_is_refused(other):
    saved = nupi.Coefficient(**LOG)
    saved.update(3.0)
    coefficient = nupi.Coefficient(**other)
    before = coefficient.value.clone()
    with pytest.raises(
        ValueError, match=r"at_most=\.\.\., log=True\).*the same side and log. Nothing was loaded"
    ):
        coefficient.load_state_dict(saved.state_dict())
    assert torch.equal(coefficient.value, before)
    nearer = nupi.Coefficient(**LOG | {"at_most": 1.5})
    nearer.load_state_dict(saved.state_dict())
    assert torch.equal(nearer.value, saved.value)


@pytest.mark.parametrize("again", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_a_copy_goes_on_by_itself_and_knows_what_is_wrong(again):
    coefficient = nupi.Coefficient(**LOG, limits=(1e-3, 10.0))
    for _ in range(100):
        coefficient.update(5.0)
    other = again(coefficient)
    for _ in range(300):
        coefficient.update(5.0)
    for _ in range(300):
        other.update(5.0)
    assert torch.equal(other.value, coefficient.value)
    assert [each.kind for each in other.diagnose()] == ["capped"]
    assert other.diagnose() == coefficient.diagnose()


def test_targets_of_numpy_are_numbers():
    assert nupi.Coefficient(at=np.float32(0.5), steps=5).target == 0.5


def test_numbers_and_graphs_are_taken_and_no_gradient_flows():
    coefficient = nupi.Coefficient(at_most=1.0, steps=50)
    assert not coefficient.update(torch.tensor(2.0, requires_grad=True) * 1).requires_grad
    assert coefficient.update(2) > 0
    assert coefficient.gains()["kp"] > 0


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="exactly one of at, at_most and at_least, but none of them came"):
        nupi.Coefficient(steps=5)
    with pytest.raises(ValueError, match=r"but at=1.0, at_most=2.0 came"):
        nupi.Coefficient(at=1.0, at_most=2.0, steps=5)
    with pytest.raises(ValueError, match=r"init=-1\.0: the coefficient of at_most is >= 0"):
        nupi.Coefficient(at_most=1.0, steps=5, init=-1.0)
    coefficient = nupi.Coefficient(at=1.0, steps=5)
    with pytest.raises(ValueError, match=r"metric must be one number, but its shape is \(2,\)"):
        coefficient.update(torch.zeros(2))
    before = coefficient.value.clone()
    with pytest.raises(nupi.NonFiniteViolationError):
        coefficient.update(float("nan"))
    assert torch.equal(coefficient.value, before)
    with pytest.raises(ValueError, match="not 'multiplier', 'controller' and 'kind'"):
        coefficient.load_state_dict({})


def balanced(pull, coefficient, steps):
    """min pull (x - 3)^2 / 2 with a coefficient on x^2 / 2, each step the gradient's over the curvature, damped."""
    x = 3.0
    for _ in range(steps):
        beta = float(coefficient.update(x * x / 2))
        x -= 0.1 * (pull * (x - 3) + beta * x) / (pull + beta)
    return x


@pytest.mark.parametrize("need", [1e-5, 1e-2, 3.0, 1e3, 1e5])
def test_in_the_log_domain_ten_decades_are_one_setting(need):
    """x = 1, where x^2 / 2 is at its target, balances at beta = 2 pull."""
    coefficient = nupi.Coefficient(at=0.5, steps=300, log=True)
    x = balanced(need / 2, coefficient, 1500)
    assert x * x / 2 == pytest.approx(0.5, rel=0.05)
    assert float(coefficient.value) == pytest.approx(need, rel=0.3)


def test_in_the_log_domain_a_bound_that_is_met_costs_the_least_and_a_lower_one_stays_negative():
    met = nupi.Coefficient(at_most=50.0, steps=50, log=True, limits=(1e-3, None))
    balanced(1.0, met, 300)
    assert float(met.value) == pytest.approx(1e-3)
    low = nupi.Coefficient(at_least=4.0, steps=100, log=True)
    x = run(low, 800)
    assert float(x) == pytest.approx(4.0, rel=0.02)
    assert float(low.value) == pytest.approx(-2.0, abs=0.2)


@pytest.mark.parametrize(("side", "high"), [("at_most", 1.5), ("at", 1.5), ("at_least", 1.0)])
def test_limits_hold_and_are_found_to_be_the_reason(side, high):
    target = 4.0 if side == "at_least" else 1.0
    coefficient = nupi.Coefficient(**{side: target}, steps=100, limits=(None, high), name="x")
    run(coefficient, 800)
    assert abs(float(coefficient.value)) == pytest.approx(high)
    (finding,) = coefficient.diagnose()
    assert (finding.constraint, finding.kind) == ("x", "capped")


def test_a_coefficient_at_its_limit_in_the_log_domain_is_found_and_the_advice_is_about_the_coefficient():
    """The logarithm of a limit below 1 is negative."""
    for high, more in ((0.5, "5"), (2.0, "20")):
        coefficient = nupi.Coefficient(at_most=0.01, steps=100, log=True, limits=(1e-3, high))
        run(coefficient, 800)
        assert coefficient.value.item() == pytest.approx(high)
        (finding,) = coefficient.diagnose()
        assert finding.kind == "capped"
        assert (
            finding.advice == f"Raise the upper one of limits, {high:g}, to {more} say, or loosen the target"
        )


def test_a_target_that_cannot_be_reached_is_a_finding_and_one_that_is_reached_is_none():
    coefficient = nupi.Coefficient(at_most=-1.0, steps=50)
    x = torch.tensor(1.0)
    for _ in range(600):
        beta = coefficient.update(x.square())  # never below 0
        x = x - 0.05 * (2 * (x - 3) + beta * 2 * x).clamp(-10, 10)
    assert "infeasible" in [finding.kind for finding in coefficient.diagnose()]
    fine = nupi.Coefficient(at=1.0, steps=100)
    run(fine, 600)
    assert not [finding for finding in fine.diagnose() if finding.severity == "severe"]


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"at_most": 2.0, "limits": (1e-3, 10.0)}, 1e-3),
        ({"at_least": 2.0, "limits": (0.5, 10.0)}, -0.5),
        ({"at_most": 2.0, "limits": (None, 10.0)}, 0.0),
        ({"at_most": 2.0, "limits": (2.0, 10.0), "log": True}, 2.0),
        ({"at_most": 2.0, "limits": (None, 0.1), "log": True}, 0.1),
    ],
)
def test_it_starts_as_near_to_its_usual_start_as_the_limits_allow(more, start):
    assert nupi.Coefficient(steps=50, **more).value.item() == pytest.approx(start)


def test_bad_limits_are_refused():
    for limits in [(2.0, 1.0), (-1.0, 1.0), (0.0, float("inf")), (1.0,), 3.0, ("a", "b")]:
        with pytest.raises(ValueError, match="limits must be"):
            nupi.Coefficient(at=1.0, steps=5, limits=limits)
    with pytest.raises(ValueError, match="limits must be"):
        nupi.Coefficient(at=1.0, steps=5, log=True, limits=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"init=5 is not within limits=\(None, 2.0\)"):
        nupi.Coefficient(at=1.0, steps=5, init=5, limits=(None, 2.0))
    with pytest.raises(ValueError, match=r"init=0\.0: the coefficient of at is > 0 here"):
        nupi.Coefficient(at=1.0, steps=5, init=0.0, log=True)
