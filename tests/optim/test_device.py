"""State follows its parameter to another device.

No accelerator is needed: the other device is "meta", which computes no values but has kernels that refuse to write to
a tensor of another device. That the numbers come along is torch's `to`; a real accelerator is not tested here.
"""

import pytest
import torch

import nupi

DUALS = {
    "NuPI": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.5, foreach=False),
    "foreach": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.5, foreach=True),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, form="positional"),
    "PID": lambda p: nupi.PID(p, 0.1, 1.0, 0.2),
    "momentum": lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5),
}


def sparse(device):
    rows = torch.tensor([[1]], device=device)
    return torch.sparse_coo_tensor(rows, torch.ones(1, device=device), (3,), check_invariants=False)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("make", DUALS.values(), ids=DUALS)
def test_state_that_was_loaded_before_a_move_moves_with_the_next_step(make, kind):
    def step(dual, device):
        held = dual.param_groups[0]["params"]
        for param in held:
            param.grad = torch.ones(3, device=device) if kind == "dense" else sparse(device)
        dual.step()
        return [dual.state[param] for param in held]

    loaded = step(make([torch.zeros(3), torch.zeros(3)]), "cpu")
    moved = [torch.zeros(3, device="meta"), torch.zeros(3, device="meta")]
    dual = make(moved)
    for param, state in zip(moved, loaded, strict=True):
        assert state
        dual.state[param] = dict(state)
    for state, before in zip(step(dual, "meta"), loaded, strict=True):
        assert state.keys() == before.keys()
        assert all(value.device.type == "meta" for value in state.values())
