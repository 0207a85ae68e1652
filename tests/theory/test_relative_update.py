import math

import pytest
import sympy
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nupi import rule
from nupi.theory.relative_update import UpdateMode, modes, psi, relative_update

gains = st.floats(0.01, 10.0)
signed = st.floats(-10.0, 10.0).filter(lambda x: abs(x) > 1e-3)
smoothing = st.floats(-0.9, 0.9)


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def test_the_papers_ratio_is_the_ratio_of_the_steps():
    ki, kp, nu, e, xi = sympy.symbols("k_i k_p nu e xi", nonzero=True)
    step = ki * e + kp * (nu * xi + (1 - nu) * e - xi)  # ki e_t + kp (xi_t - xi_{t-1})
    share = kp * (1 - nu) / (ki + kp * (1 - nu))
    assert sympy.simplify(step / (ki * e) - (1 - share * xi / e) / (1 - share)) == 0


@given(signed, signed, gains, signed, smoothing)
def test_relative_update_is_the_formula_with_psi(e, xi, ki, kp, nu):
    assume(abs(ki + kp * (1 - nu)) > 1e-3)
    share = kp * (1 - nu) / (ki + kp * (1 - nu))
    expected = (1 - share * xi / e) / (1 - share)
    assert psi(ki, kp, nu) == pytest.approx(share)
    assert relative_update(tensor(e), tensor(xi), ki, kp, nu).item() == pytest.approx(
        expected, rel=1e-6, abs=1e-6
    )


@given(signed, gains, signed, smoothing)
def test_limits_of_the_ratio(xi, ki, kp, nu):
    assume(abs(ki + kp * (1 - nu)) > 1e-2)
    share = psi(ki, kp, nu)
    far = tensor([-1e9, 1e9]) * max(1.0, abs(kp / ki))
    torch.testing.assert_close(
        relative_update(far, tensor(xi), ki, kp, nu), tensor([1 / (1 - share)] * 2), rtol=1e-6, atol=1e-6
    )
    ends = relative_update(tensor([xi, share * xi]), tensor(xi), ki, kp, nu)
    torch.testing.assert_close(ends, tensor([1.0, 0.0]), rtol=1e-6, atol=1e-6)


def interval_mode(e, xi, ki, kp, nu):
    """The modes as intervals of e / xi, by hand for each sign of kp: the ratio is 1 + k (1 - xi / e)."""
    r, k = e / xi, kp * (1 - nu) / ki
    zero = k / (1 + k) if k != -1 else -math.inf  # psi: where the ratio is 0
    if k > 0:
        return UpdateMode.C if 0 < r < zero else UpdateMode.B if zero <= r <= 1 else UpdateMode.A
    if k > -1:  # psi < 0
        return UpdateMode.A if 0 < r < 1 else UpdateMode.C if zero < r < 0 else UpdateMode.B
    # psi >= 1, or none: a step against the error for all large ones
    if 0 < r < 1:
        return UpdateMode.A
    return UpdateMode.B if 1 <= r <= (zero if k < -1 else math.inf) else UpdateMode.C


@given(signed, signed, gains, signed, smoothing)
def test_modes_are_the_intervals_for_every_sign(e, xi, ki, kp, nu):
    k = kp * (1 - nu) / ki
    ratio = 1 + k * (1 - xi / e)
    assume(min(abs(ratio), abs(ratio - 1), abs(k + 1)) > 1e-6)  # rounding decides on the edges
    assert modes(tensor(e), tensor(xi), ki, kp, nu).item() == interval_mode(e, xi, ki, kp, nu)


def test_modes_at_the_edges():
    at = tensor([0.0, 0.5, 1.0])  # psi = 1/2
    assert modes(at, tensor(1.0), 1.0, 1.0).tolist() == [UpdateMode.A, UpdateMode.B, UpdateMode.B]
    # No history, or no kp: where gradient ascent stands still, nuPI does too.
    assert modes(tensor(0.0), tensor(0.0), 1.0, 1.0).item() == UpdateMode.B
    assert modes(tensor([0.0, 1.0]), tensor(1.0), 1.0, 0.0).tolist() == [UpdateMode.B, UpdateMode.B]


def test_the_inputs_are_left_as_they_were():
    e, xi = tensor([1.0, 2.0]), tensor([0.5])
    relative_update(e, xi, 1.0, 1.0)
    modes(e, xi, 1.0, 1.0)
    assert e.tolist() == [1.0, 2.0]
    assert xi.tolist() == [0.5]


def test_psi_says_where_it_has_no_value():
    with pytest.raises(ValueError, match=r"ki=1.0, kp=-2.0, nu=0.5"):
        psi(1.0, -2.0, 0.5)
    # ... and the ratio itself has one there: xi / e.
    assert relative_update(tensor(2.0), tensor(3.0), 1.0, -2.0, 0.5).item() == pytest.approx(1.5)


def test_the_rule_is_called_and_not_restated(monkeypatch):
    called = []
    monkeypatch.setattr(rule, "velocity_", lambda *args: called.append(args))
    relative_update(tensor(1.0), tensor(1.0), 1.0, 1.0)
    assert len(called) == 1
