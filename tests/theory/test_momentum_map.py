import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import nupi
from nupi.theory import Momentum, as_momentum

steps = st.floats(0.01, 2.0)
betas = st.floats(-0.9, 0.9).filter(lambda b: abs(b) > 0.01)


def test_the_inverse_by_sympy():
    alpha, beta, gamma, ki, kp, nu = sympy.symbols("alpha beta gamma k_i k_p nu", positive=True)
    there = [
        sympy.Eq(nu, beta),
        sympy.Eq(ki, alpha / (1 - beta)),
        sympy.Eq(kp, -alpha * beta / (1 - beta) ** 2 * (1 - gamma * (1 - beta))),
    ]
    (back,) = sympy.solve(there, [alpha, beta, gamma], dict=True)
    assert sympy.simplify(back[gamma] - (1 / (1 - nu) + kp / (ki * nu))) == 0
    assert sympy.simplify(back[alpha] - ki * (1 - nu)) == 0


@given(steps, betas, st.floats(0.0, 1.0))
def test_there_and_back(alpha, beta, share):
    gamma = share * 0.999 / (1 - beta)  # anywhere in [0, 1 / (1 - beta)), whose end is gradient ascent
    back = as_momentum(**nupi.as_nupi(alpha, beta, gamma))
    assert back == pytest.approx((alpha, beta, gamma), abs=1e-7)


@given(steps, betas)
def test_polyak_and_nesterov_are_known_by_name(alpha, beta):
    assert as_momentum(**nupi.as_nupi(alpha, beta, 0.0)).name == "Polyak"
    assert as_momentum(**nupi.as_nupi(alpha, beta, 1.0)).name == "Nesterov"


def test_what_no_momentum_method_is():
    assert as_momentum(ki=1.0, kp=1.0, nu=0.0) is None  # a PI controller
    assert as_momentum(ki=1.0, kp=1.0, nu=0.9) is None  # the paper's fairness gains have these signs
    assert as_momentum(ki=1.0, kp=-1.1, nu=0.5) is None  # beyond Polyak
    assert as_momentum(ki=1.0, kp=0.4, nu=-0.5) is None  # beyond Polyak with negative momentum
    assert as_momentum(ki=1.0, kp=-0.2, nu=-0.5) is None  # beyond Nesterov with negative momentum
    assert as_momentum(ki=0.0, kp=1.0, nu=0.5) is None
    assert as_momentum(ki=1.0, kp=-1.0, nu=1.0) is None


def test_the_ends_of_the_surface():
    assert as_momentum(ki=0.3, kp=0.0, nu=0.7) == Momentum(0.3, 0.0, 0.0)
    assert as_momentum(ki=0.3, kp=0.0, nu=0.7).name == "gradient ascent"
    assert as_momentum(ki=1.0, kp=-1.0, nu=0.5) == Momentum(0.5, 0.5, 0.0)  # Polyak: kp = -ki nu / (1 - nu)
    assert as_momentum(ki=1.0, kp=-0.75, nu=0.5).name == "unified momentum"


@pytest.mark.parametrize("gains", [(1.0, -0.75, 0.5), (1.0, 0.2, -0.5), (0.5, -0.1, 0.2), (0.4, 0.0, 0.6)])
def test_the_two_optimizers_walk_together(gains):
    """NuPI with these gains, and UnifiedMomentum with what they map to, on the same errors."""
    ki, kp, nu = gains
    method = as_momentum(ki, kp, nu)
    thetas = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
    optimizers = [
        nupi.NuPI([thetas[0]], ki=ki, kp=kp, nu=nu, init="ema"),
        nupi.UnifiedMomentum([thetas[1]], lr=method.alpha, beta=method.beta, gamma=method.gamma),
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        error = torch.randn(3, generator=generator, dtype=torch.float64)
        for theta, optimizer in zip(thetas, optimizers, strict=True):
            theta.grad = error.clone()
            optimizer.step()
        torch.testing.assert_close(*thetas, rtol=1e-12, atol=1e-12)


def test_a_gain_that_is_not_finite_is_refused_by_name():
    with pytest.raises(ValueError, match="kp=nan must be finite"):
        as_momentum(1.0, math.nan, 0.5)


@pytest.mark.parametrize("gains", [(-1.0, 0.2, 0.5), (1.0, 0.5, -2.0), (-1.0, 0.0, 0.0)])
def test_what_the_momentum_optimizer_refuses_is_no_method(gains):
    assert as_momentum(*gains) is None
