"""Momentum, PI and optimistic gradient as nuPI, each against a code that is not ours."""

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import draw, run

import nupi

sequences = st.lists(st.floats(-2, 2), min_size=1, max_size=15)


def path_of(optimizer, param, errors):
    path = []
    for e in errors:
        run(optimizer, [param], [(torch.as_tensor([e], dtype=torch.float64),)])
        path.append(param.item())
    return path


def zero():
    return torch.zeros(1, dtype=torch.float64)


@given(sequences, st.floats(0.001, 2), st.floats(-0.95, 0.95), st.floats(-1, 3))
def test_unified_momentum_is_a_nupi_controller(errors, alpha, beta, gamma):
    left, right = zero(), zero()
    momentum = path_of(nupi.UnifiedMomentum([left], alpha, beta, gamma), left, errors)
    controller = path_of(nupi.NuPI([right], **nupi.as_nupi(alpha, beta, gamma), init="ema"), right, errors)
    assert controller == pytest.approx(momentum, rel=1e-7, abs=1e-9)
    assert momentum == pytest.approx(oracles.momentum(errors, 0.0, alpha, beta, gamma), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("gamma", "nesterov"), [(0.0, False), (1.0, True)], ids=["Polyak", "Nesterov"])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_positive_momentum_is_torchs(gamma, nesterov, beta):
    ours, theirs = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    errors = [(e,) for e in draw(0, 4)]
    run(nupi.UnifiedMomentum([ours], 0.1, beta, gamma), [ours], errors)
    sgd = torch.optim.SGD([theirs], 0.1, momentum=beta, nesterov=nesterov, maximize=True)
    run(sgd, [theirs], errors)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_nupi_at_nu_0_is_optaxs_optimistic_gradient():
    errors = [e.numpy() for e in draw(1, 3)]
    bumpless, error = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for init, param in (("bumpless", bumpless), ("error", error)):
        run(nupi.NuPI([param], ki=0.2, kp=0.7, init=init), [param], [(torch.from_numpy(e),) for e in errors])
    import jax  # so late because it takes a second
    import optax

    with jax.enable_x64(True):
        # optax descends along (alpha + beta) g_t - beta g_{t-1}; ascent on e is descent on -e.
        method = optax.optimistic_gradient_descent(1.0, alpha=0.2, beta=0.7)
        theta = jax.numpy.zeros(3)
        state = method.init(theta)
        for e in errors:
            update, state = method.update(-jax.numpy.asarray(e), state, theta)
            theta = optax.apply_updates(theta, update)
    # optax takes the first gradient for the one before it: xi_{-1} = e_0. The paper's row has xi_0 = e_0, with
    # nothing before it, and keeps that one step of kp e_0 for good.
    np.testing.assert_allclose(bumpless.numpy(), np.asarray(theta), rtol=1e-12)
    np.testing.assert_allclose(error.numpy() - 0.7 * errors[0], np.asarray(theta), rtol=1e-12)


def test_at_kp_0_nupi_is_gradient_ascent_and_keeps_no_state():
    ours, theirs = torch.zeros(4), torch.zeros(4)
    errors = [(e,) for e in draw(2, 4, dtype=torch.float32)]
    optimizer = nupi.NuPI([ours], ki=0.3, nu=0.9)
    run(optimizer, [ours], errors)
    run(torch.optim.SGD([theirs], 0.3, maximize=True), [theirs], errors)
    assert torch.equal(ours, theirs)
    assert not optimizer.state


def test_pi_is_the_plain_sum_of_both_terms():
    errors = [float(e) for e in draw(3, 1)]
    param = zero()
    path = path_of(nupi.NuPI([param], ki=0.2, kp=1.5, init="error"), param, errors)
    expected = [0.2 * sum(errors[: t + 1]) + 1.5 * errors[t] for t in range(len(errors))]
    assert path == pytest.approx(expected, rel=1e-12)


def test_signs_of_kp_are_the_papers():
    for beta in (0.3, 0.9):
        assert nupi.as_nupi(0.5, beta, 0.0)["kp"] < 0  # Polyak: positive momentum takes damping away
        assert nupi.as_nupi(0.5, -beta, 0.0)["kp"] > 0  # negative momentum adds it
        assert nupi.as_nupi(0.5, beta, 1.0)["kp"] < 0  # Nesterov never adds it
        assert nupi.as_nupi(0.5, -beta, 1.0)["kp"] < 0
    with pytest.raises(ValueError, match="beta=1"):
        nupi.as_nupi(0.5, 1.0, 0.0)
