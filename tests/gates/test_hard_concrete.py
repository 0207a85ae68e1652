"""The gates against the distribution itself: scipy's logistic, its integrals, and finite differences of them."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from nupi.gates import HardConcrete, probability_active, quantile

DRAWS = 200_000
LOCATIONS = [-6.0, -3.0, -1.6, 0.0, 0.7, 4.6]
SETTINGS = [(2 / 3, (-0.1, 1.1)), (0.3, (-0.5, 1.2)), (1.5, (-0.05, 2.0))]


def survival(a, phi, temperature, stretch):
    """P(z > a) for 0 <= a < 1: where a logistic variable puts the stretched concrete one above a."""
    low, high = stretch
    s = (a - low) / (high - low)
    return stats.logistic.sf(temperature * math.log(s / (1 - s)) - phi)


def mean(phi, temperature, stretch):
    return quad(survival, 0, 1, args=(phi, temperature, stretch))[0]


def gates_at(phi, temperature=2 / 3, stretch=(-0.1, 1.1), count=DRAWS):
    gate = HardConcrete(count, temperature=temperature, stretch=stretch)
    with torch.no_grad():
        gate.log_alpha.fill_(phi)
    return gate


@pytest.mark.parametrize(("temperature", "stretch"), SETTINGS)
@pytest.mark.parametrize("phi", LOCATIONS)
def test_samples_follow_the_distribution(phi, temperature, stretch):
    torch.manual_seed(0)
    gate = gates_at(phi, temperature, stretch)
    z = gate.sample().detach().double().numpy()
    assert z.min() >= 0
    assert z.max() <= 1
    for a in (0.0, 0.1, 0.5, 0.9, 1 - 1e-6):
        p = survival(a, phi, temperature, stretch)
        assert np.mean(z > a) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / DRAWS) + 1e-5)
    assert np.mean(z) == pytest.approx(
        mean(phi, temperature, stretch), abs=5 * float(z.std()) / math.sqrt(DRAWS) + 1e-5
    )


@pytest.mark.parametrize(("temperature", "stretch"), SETTINGS)
@pytest.mark.parametrize("phi", LOCATIONS)
def test_probability_and_expected_l0_are_the_closed_form(phi, temperature, stretch):
    gate = gates_at(phi, temperature, stretch, count=7).double()
    p = survival(0.0, phi, temperature, stretch)
    assert gate.probability().detach().numpy() == pytest.approx(np.full(7, p), rel=1e-6)
    assert gate.expected_l0().item() == pytest.approx(7 * p, rel=1e-6)


def test_expected_l0_is_the_mean_count():
    torch.manual_seed(1)
    gate = HardConcrete(50)
    with torch.no_grad():
        gate.log_alpha.normal_(-1.5, 2.0)
    counts = torch.stack([(gate.sample() > 0).sum() for _ in range(4000)]).double()
    assert gate.expected_l0().item() == pytest.approx(
        counts.mean().item(), abs=5 * counts.std().item() / 4000**0.5
    )


@pytest.mark.parametrize(("temperature", "stretch"), SETTINGS)
def test_gradients_against_finite_differences(temperature, stretch):
    torch.manual_seed(2)
    phi = torch.randn(200, dtype=torch.float64)
    u = torch.rand(200, dtype=torch.float64)
    z = quantile(phi, u, temperature, stretch)
    smooth = ((z == 0) | (z == 1) | ((z > 0.01) & (z < 0.99))).nonzero().squeeze(1)  # a cut has no derivative
    inside = phi[smooth].requires_grad_()
    assert torch.autograd.gradcheck(lambda p: quantile(p, u[smooth], temperature, stretch), inside)
    assert torch.autograd.gradcheck(lambda p: probability_active(p, temperature, stretch), inside)


@pytest.mark.parametrize("phi", LOCATIONS)
def test_the_mean_gradient_is_the_gradient_of_the_mean(phi):
    torch.manual_seed(3)
    gate = gates_at(phi)
    gate.sample().sum().backward()
    gradient = gate.log_alpha.grad.double()
    h, setting = 1e-3, (2 / 3, (-0.1, 1.1))
    slope = (mean(phi + h, *setting) - mean(phi - h, *setting)) / (2 * h)
    assert gradient.mean().item() == pytest.approx(slope, abs=5 * gradient.std().item() / DRAWS**0.5 + 1e-5)


@given(phi=st.floats(-30, 30), setting=st.sampled_from(SETTINGS))
def test_the_median_is_open_exactly_where_active_is_likelier_than_not(phi, setting):
    location = torch.tensor([phi], dtype=torch.float64)
    p = probability_active(location, *setting).item()
    if abs(p - 0.5) > 1e-9:
        assert (quantile(location, 0.5, *setting).item() > 0) == (p > 0.5)


def test_the_median_halves_the_samples():
    torch.manual_seed(4)
    gate = gates_at(0.3)
    share = (gate.sample() > gate.median()).double().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / DRAWS**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite(dtype):
    phi = torch.tensor([-1e30, -80.0, 0.0, 80.0, 1e30], dtype=dtype, requires_grad=True)
    for u in (0.0, 1e-45, 0.5, 1.0):
        z = quantile(phi, u)
        assert ((z >= 0) & (z <= 1)).all()
        assert torch.isfinite(torch.autograd.grad(z.sum() + probability_active(phi).sum(), phi)[0]).all()
    assert not quantile(phi, 0.0).any()
    assert (quantile(phi, 1.0) == 1).all()


def test_autocast_changes_nothing():
    gate = gates_at(0.0, count=1000)
    torch.manual_seed(5)
    plain = gate()
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16):
        under = gate()
        assert gate.probability().dtype == torch.float32
    assert under.dtype == torch.float32
    assert torch.equal(plain, under)


def test_location_is_never_narrowed():
    gate = HardConcrete(3)
    before = gate.log_alpha.detach().clone()
    for narrow in (torch.bfloat16, torch.float16):
        gate.to(narrow)
        assert gate.log_alpha.dtype == torch.float32
        assert torch.equal(gate.log_alpha, before)
    assert gate.double().log_alpha.dtype == torch.float64
    assert gate().dtype == torch.float64


def test_nor_is_its_gradient_nor_a_gate_made_under_a_narrow_default():
    gate = HardConcrete(3)
    gate.expected_l0().backward()
    before = gate.log_alpha.grad.clone()
    gate.bfloat16()
    assert torch.equal(gate.log_alpha.grad, before)
    torch.optim.Adam(gate.parameters()).step()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert HardConcrete(3).log_alpha.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_training_samples_and_evaluation_takes_the_median():
    gate = gates_at(0.0, count=100)
    assert not torch.equal(gate(), gate())
    gate.eval()
    assert torch.equal(gate(), gate())
    assert torch.equal(gate(), gate.median())


def test_droprate_init_is_the_share_of_concrete_variables_below_one_half():
    torch.manual_seed(6)
    gate = HardConcrete(DRAWS, droprate_init=0.2)
    below = (gate.sample() < 0.5).double().mean().item()  # the stretch is symmetric: s < 1/2 means z < 1/2
    assert below == pytest.approx(0.2, abs=5 * 0.4 / DRAWS**0.5)
    assert gate.log_alpha.std().item() == pytest.approx(0.01, rel=0.02)


def test_clamp_takes_a_step_back_and_lets_gates_return():
    gate = HardConcrete(2, droprate_init=0.05, clamp=4.6)
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor([-9.0, 9.0]))
    gate()
    assert gate.log_alpha.tolist() == pytest.approx([-4.6, 4.6])
    gate.probability().sum().backward()
    assert (gate.log_alpha.grad > 0).all()  # at its bound a gate still feels what would bring it back


def test_evaluation_leaves_the_parameter_alone_but_keeps_the_range():
    gate = HardConcrete(1, droprate_init=0.05, clamp=2.95).eval()
    with torch.no_grad():
        gate.log_alpha.fill_(-9.0)
    assert gate.probability().item() == pytest.approx(
        stats.logistic.cdf(-2.95 + 2 / 3 * math.log(11)), rel=1e-5
    )
    assert gate.log_alpha.item() == -9.0


def test_copies_and_saves(tmp_path):
    gate = HardConcrete((2, 3), clamp=5.0)
    gate()
    for twin in (copy.deepcopy(gate), pickle.loads(pickle.dumps(gate))):
        assert torch.equal(twin.log_alpha, gate.log_alpha)
    torch.save(gate.state_dict(), tmp_path / "gate.pt")
    other = HardConcrete((2, 3), clamp=5.0)
    other.load_state_dict(torch.load(tmp_path / "gate.pt", weights_only=True))
    assert torch.equal(other.median(), gate.median())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"droprate_init": 0.0}, "droprate_init"),
        ({"droprate_init": 1.0}, "droprate_init"),
        ({"temperature": 0.0}, "temperature"),
        ({"stretch": (0.0, 1.1)}, "stretch"),
        ({"stretch": (-0.1, 1.0)}, "stretch"),
        ({"clamp": 0.0}, "clamp"),
        ({"clamp": 2.0}, "outside clamp"),
        ({"clamp": 1.59, "droprate_init": 0.3}, "clamp=1.59 would never let a gate close.*-1.6"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 10**400}, "temperature=inf"),
        ({"stretch": (-float("inf"), 1.1)}, "stretch"),
        ({"stretch": (-(10**400), 1.1)}, "stretch"),
        ({"stretch": (-0.1, float("nan"))}, "stretch"),
        ({"stretch": (-0.1,)}, "stretch"),
        ({"stretch": None}, "stretch=None"),
    ],
)
def test_refusals(options, word):
    with pytest.raises(ValueError, match=word):
        HardConcrete(3, **options)


@pytest.mark.parametrize("option", ["droprate_init", "temperature", "stretch"])
def test_what_is_no_number_is_refused_by_name(option):
    with pytest.raises(TypeError, match=f"{option} must be a number, but '1' is a str"):
        HardConcrete(3, **{option: ("1", 1.1) if option == "stretch" else "1"})


def test_the_smallest_clamp_lets_gates_close():
    gate = HardConcrete(np.int64(3), clamp=1.61, droprate_init=0.3).eval()
    with torch.no_grad():
        gate.log_alpha.fill_(-9.0)
    assert not gate.is_open().any()


def test_gates_are_opened_and_closed_just_so():
    gate = HardConcrete(4, clamp=4.6).eval()
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor([-4.0, 3.0, -2.0, 3.0]))
    gate.open_(torch.tensor([True, True, False, False]))
    assert gate.is_open().tolist() == [True, True, False, True]
    assert 0 < gate.median()[0].item() < 0.01
    gate.close_(torch.tensor([True, False, True, True]))
    assert gate.is_open().tolist() == [False, True, False, False]
    assert gate.log_alpha[1:3].tolist() == [3.0, -2.0]  # what was as asked is left alone
