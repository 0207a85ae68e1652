"""A small problem, some steps of it, and a look at whether anything changed: shared by several tests."""

import copy

import torch

import nupi


def problem(**more):
    lagrangian = nupi.Lagrangian({"fair": nupi.Equality(3), "small": nupi.Inequality(), **more})
    return lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.2)


def snapshot(lagrangian, dual):
    return copy.deepcopy((lagrangian.state_dict(), dual.state_dict()))


def assert_unchanged(before, lagrangian, dual):
    (multipliers, state), (now, now_state) = before, snapshot(lagrangian, dual)
    assert multipliers.keys() == now.keys()
    assert all(torch.equal(multipliers[name], now[name]) for name in now)
    assert state["state"].keys() == now_state["state"].keys()
    for key, slots in state["state"].items():
        assert slots.keys() == now_state["state"][key].keys()
        for slot, value in slots.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(now_state["state"][key][slot])), slot


def some_steps(lagrangian, dual, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        violations = {
            name: torch.randn(c.shape, generator=generator) for name, c in lagrangian.constraints.items()
        }
        lagrangian.ascend(dual, violations)
