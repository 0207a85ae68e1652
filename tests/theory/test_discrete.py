import math

import numpy as np
import pytest
import torch

import nupi
from nupi.theory import iteration_matrix, spectral_radius, stability_region
from nupi.theory.discrete import SCHEMES

H = torch.tensor([[2.0, 0.4, 0.0], [0.4, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)
A = torch.tensor([[1.0, 0.5, -0.3], [0.2, -1.0, 0.4]], dtype=torch.float64)


def plain_loop(state, steps, lr, ki, kp, nu, momentum, scheme):
    """The same iteration in numpy, as one would write it from Algorithm 1."""
    h, a = H.numpy(), A.numpy()
    x, v, mu, xi = np.split(state, [3, 6, 8])
    path = [state]
    for _ in range(steps):

        def dual(x, mu, xi):
            new = nu * xi + (1 - nu) * (a @ x)
            return mu + ki * (a @ x) + kp * (new - xi), new

        def primal(x, v, mu):
            v = momentum * v + h @ x + a.T @ mu
            return x - lr * v, v

        if scheme == "alternating":
            mu, xi = dual(x, mu, xi)
            x, v = primal(x, v, mu)
        elif scheme == "simultaneous":
            (mu, xi), (x, v) = dual(x, mu, xi), primal(x, v, mu)
        else:
            x, v = primal(x, v, mu)
            mu, xi = dual(x, mu, xi)
        path.append(np.concatenate([x, v, mu, xi]))
    return np.stack(path)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("nu", [0.0, 0.6, -0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_powers_of_the_matrix_are_the_loop(scheme, nu, momentum):
    gains = {"lr": 0.2, "ki": 0.1, "kp": 0.8, "nu": nu, "momentum": momentum, "scheme": scheme}
    start = np.random.default_rng(0).normal(size=10)
    path = plain_loop(start, 30, **gains)
    matrix = iteration_matrix(H, A, **gains).numpy()
    for t in (1, 2, 30):
        np.testing.assert_allclose(np.linalg.matrix_power(matrix, t) @ start, path[t], rtol=1e-9, atol=1e-12)


def run_optimizers(steps, *, lr, ki, kp, nu, momentum, scheme):
    """A training loop with the real optimizers on the quadratic program whose solution is 0."""
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    lagrangian = nupi.Lagrangian({"rows": nupi.Equality(2)}).double()
    primal = torch.optim.SGD([x], lr=lr, momentum=momentum)
    # From xi_{-1} = 0 with the ordinary weight: every step is the matrix's.
    dual = nupi.NuPI(lagrangian.parameters(), ki=ki, kp=kp, nu=nu, init="ema")
    path = []
    for _ in range(steps):
        path.append(torch.cat([x.detach(), lagrangian.multipliers["rows"]]).clone())
        violations = {"rows": A @ x}
        if scheme == "alternating":
            lagrangian.ascend(dual, violations)
        lagrangian(0.5 * x @ H @ x, violations).backward()
        if scheme == "simultaneous":
            lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()
        if scheme == "primal-first":
            lagrangian.ascend(dual, {"rows": (A @ x).detach()})
    return torch.stack(path)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("kp", "nu", "momentum"), [(0.0, 0.0, 0.0), (0.8, 0.0, 0.0), (0.8, 0.6, 0.5), (-0.1, 0.3, 0.0)]
)
def test_the_real_optimizers_do_what_the_matrix_says(scheme, kp, nu, momentum):
    """State for state over the first steps, and then at the predicted rate."""
    gains = {"lr": 0.2, "ki": 0.1, "kp": kp, "nu": nu, "momentum": momentum, "scheme": scheme}
    path = run_optimizers(600, **gains)
    matrix = iteration_matrix(H, A, **gains)
    state = torch.zeros(10, dtype=torch.float64)
    state[:3] = path[0][:3]
    for point in path[:25]:
        torch.testing.assert_close(torch.cat([state[:3], state[6:8]]), point, rtol=1e-9, atol=1e-12)
        state = matrix @ state
    radius = spectral_radius(matrix).item()
    assert radius < 1
    # The solution is 0, so nothing is lost to rounding however small the iterates get. The most of a window
    # at both ends takes the phase of an oscillation out.
    norms = path.norm(dim=1)
    first, last = norms[150:220].argmax().item() + 150, norms[530:].argmax().item() + 530
    measured = (norms[last] / norms[first]).log().item() / (last - first)
    assert measured == pytest.approx(np.log(radius), rel=0.05)


def test_the_edge_of_stability_is_where_the_real_optimizers_diverge():
    """For each kp, bisect for the largest stable ki, and run the optimizers on either side of it."""
    rest = {"lr": 0.2, "nu": 0.0, "momentum": 0.0, "scheme": "alternating"}
    for kp in (0.0, 1.0):
        low, high = 1e-3, 50.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            stable = spectral_radius(iteration_matrix(H, A, ki=middle, kp=kp, **rest)) < 1
            low, high = (middle, high) if stable else (low, middle)
        inside = run_optimizers(400, ki=0.97 * low, kp=kp, **rest).norm(dim=1)
        outside = run_optimizers(400, ki=1.03 * low, kp=kp, **rest).norm(dim=1)
        assert inside[-1] < inside[0]
        assert outside[-1] > outside[0]


def test_stability_region_is_the_radius_at_every_pair():
    ki, kp = torch.tensor([0.01, 0.1, 2.0]), torch.tensor([-0.5, 0.0, 1.0, 4.0])
    region = stability_region(H, A, lr=0.2, ki=ki, kp=kp, nu=0.3, momentum=0.2)
    assert region.shape == (3, 4)
    for i, j in ((0, 0), (1, 2), (2, 3)):
        one = iteration_matrix(H, A, lr=0.2, ki=ki[i].item(), kp=kp[j].item(), nu=0.3, momentum=0.2)
        assert region[i, j].item() == pytest.approx(spectral_radius(one).item(), rel=1e-6)
    assert (region < 1).any()
    assert (region > 1).any()


def test_bilinear_games_in_discrete_time():
    """Known: simultaneous descent-ascent spirals out, alternating stays bounded, and kp > 0 converges."""
    game = {"h": 0.0, "a": 1.0, "lr": 0.1, "ki": 0.1}
    assert spectral_radius(iteration_matrix(**game, scheme="simultaneous")) > 1 + 1e-6
    assert spectral_radius(iteration_matrix(**game)).item() == pytest.approx(1.0, abs=1e-9)
    assert spectral_radius(iteration_matrix(**game, kp=1.0)) < 1
    assert spectral_radius(iteration_matrix(**game, kp=1.0, scheme="simultaneous")) < 1


def test_small_steps_are_the_flow():
    """exp(-rate lr) a step: discrete time tends to continuous time, with ki / lr for ki."""
    from nupi.theory.spectrum import decay_rate

    lr = 1e-4
    for kp in (0.0, 0.5):
        radius = spectral_radius(iteration_matrix(H, A, lr=lr, ki=2.0 * lr, kp=kp)).item()
        assert -np.log(radius) / lr == pytest.approx(decay_rate(H, A, 2.0, kp), rel=1e-3)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="scheme='both': choose one of alternating, simultaneous"):
        iteration_matrix(1.0, 1.0, lr=0.1, ki=0.1, scheme="both")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "lr must lie in"),
        ({"lr": math.nan}, "lr must lie in"),
        ({"nu": 2.0}, "nu must lie in"),
        ({"momentum": 5.0}, "momentum must lie in"),
        ({"ki": math.nan}, "ki must be finite"),
        ({"kp": torch.tensor([1.0, math.inf])}, "kp must be finite"),
    ],
)
def test_an_iteration_that_no_optimizer_runs_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        iteration_matrix(1.0, 1.0, **{"lr": 0.1, "ki": 0.1, **change})


def test_a_region_takes_lists_of_gains_and_nothing_else():
    lists = stability_region(1.0, 1.0, lr=0.1, ki=[0.1, 0.2], kp=[0.0, 1.0, 2.0])
    tensors = stability_region(
        1.0, 1.0, lr=0.1, ki=torch.tensor([0.1, 0.2]).double(), kp=torch.tensor([0.0, 1.0, 2.0]).double()
    )
    torch.testing.assert_close(lists, tensors)
    with pytest.raises(ValueError, match="kp must be a list of gains"):
        stability_region(1.0, 1.0, lr=0.1, ki=[0.1], kp=torch.tensor(1.0))
