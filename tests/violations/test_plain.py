"""The Lagrangian of plain tensors takes a short way. Its value and gradient are those of loss + theta . c(x)."""

import warnings

import pytest
import torch

import nupi
from nupi.violations import plain

FEW, MANY = plain.MANY - 1, plain.MANY


@pytest.fixture
def taken(monkeypatch):
    """What the short way returned, as a list that grows."""
    found, whole = [], plain.plain_total

    def noted(*args):
        found.append(whole(*args))
        return found[-1]

    monkeypatch.setattr("nupi.lagrangian.plain_total", noted)
    return found


def problem(count, size=3, kind=nupi.Inequality, **options):
    names = [f"group{i}" for i in range(count)]
    lagrangian = nupi.Lagrangian({name: kind(size, **options) for name in names})
    draw = torch.Generator().manual_seed(0)
    for theta in lagrangian.parameters():
        theta.copy_(torch.rand(theta.shape, generator=draw))
    x = torch.randn(5, generator=draw, requires_grad=True)
    maps = {name: torch.randn(size, 5, generator=draw) for name in names}
    return lagrangian, x, maps


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_value_and_gradient_are_those_of_the_formula(count, taken):
    lagrangian, x, maps = problem(count)
    lagrangian(x.square().sum(), {name: a @ x for name, a in maps.items()}).backward()
    assert len(taken) == 1
    assert taken[0] is not None
    exact, gradient = x.detach().double().square().sum(), 2 * x.detach().double()
    for name, a in maps.items():
        theta = lagrangian.multipliers[name].double()
        exact = exact + theta @ (a.double() @ x.detach().double())
        gradient = gradient + a.double().T @ theta
    torch.testing.assert_close(taken[0].detach().double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), gradient, rtol=1e-5, atol=1e-5)
    assert all(theta.grad is None for theta in lagrangian.parameters())


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda v: v[:2], ValueError),
        (lambda v: v[0], ValueError),
        (lambda v: v[:, None], ValueError),
        (lambda v: v.detach().to_sparse(), TypeError),
        (lambda v: v.detach().long(), TypeError),
        (lambda _: 1.0, TypeError),
    ],
)
def test_what_is_wrong_is_refused_by_name(count, bad, error):
    lagrangian, x, maps = problem(count)
    violations = {name: a @ x for name, a in maps.items()}
    violations["group2"] = bad(violations["group2"])
    with pytest.raises(error, match="group2"):
        lagrangian(x.sum(), violations)


def test_an_unknown_name_is_refused():
    lagrangian, x, maps = problem(MANY)
    with pytest.raises(KeyError, match="other"):
        lagrangian(x.sum(), {**{name: a @ x for name, a in maps.items()}, "other": x})


def test_a_violation_without_gradient_is_warned_of():
    lagrangian, x, maps = problem(MANY)
    violations = {name: a @ x for name, a in maps.items()}
    violations["group1"] = violations["group1"].detach()
    with pytest.warns(UserWarning, match="group1"):
        lagrangian(x.sum(), violations)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_kinds_with_a_term_of_their_own_keep_it(count, taken):
    lagrangian, x, maps = problem(count, kind=nupi.Band, tolerance=0.1)
    violations = {name: a @ x for name, a in maps.items()}
    value = lagrangian(x.sum(), violations)
    assert taken == [None]
    wanted = x.sum()
    for name, h in violations.items():
        above, below = lagrangian.multipliers[name].unbind(-1)
        wanted = wanted + (above * (h - 0.1)).sum() + (below * (-h - 0.1)).sum()
    torch.testing.assert_close(value, wanted)


def test_other_dtypes_and_mixed_ones_are_added_up():
    lagrangian, x, maps = problem(MANY)
    half = {
        name: (a @ x).to(torch.float64 if i % 2 else torch.float32)
        for i, (name, a) in enumerate(maps.items())
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = lagrangian(x.sum(), half)
    plain_value = lagrangian(x.sum(), {name: a @ x for name, a in maps.items()})
    torch.testing.assert_close(value.float(), plain_value)
