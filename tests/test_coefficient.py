"""One coefficient for one metric: it brings the metric to its target, from either side, and can be saved."""

import io

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
    with pytest.raises(ValueError, match="not 'multiplier' and 'controller'"):
        coefficient.load_state_dict({})
