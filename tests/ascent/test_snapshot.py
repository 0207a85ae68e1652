"""What is put back when a step is undone, and when a device can do it alone."""

import pytest
import torch

import nupi
from nupi.ascent.snapshot import can_undo_on_device
from nupi.violations import Move


class Counting(torch.optim.Optimizer):
    """An optimizer of another library that keeps numbers in its param groups, and then fails."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "maximize": True, "count": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["count"] += 1
            group["average"] = 0.5
            for param in group["params"]:
                if param.grad is not None:
                    param.add_(param.grad)
        raise ArithmeticError


def test_what_a_failed_step_wrote_to_its_param_groups_is_taken_back():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2), "b": nupi.Inequality()})
    dual = Counting([{"params": [param]} for param in lagrangian.parameters()])
    before = [dict(group) for group in dual.param_groups]
    with pytest.raises(ArithmeticError):
        lagrangian.ascend(dual, {"a": torch.ones(2), "b": torch.ones(1)})
    assert [dict(group) for group in dual.param_groups] == before
    assert lagrangian.multipliers["a"].tolist() == [0.0, 0.0]


def a_move(rows=None):
    theta = torch.nn.Parameter(torch.zeros(3))
    return Move("c", theta, torch.ones(3), None, rows, None, False)


def with_state(move, **state):
    dual = torch.optim.SGD([move.multiplier], lr=0.1, momentum=0.9, maximize=True)
    if state:
        dual.state[move.multiplier] = state
    return dual


def test_a_device_brings_back_tensors_of_its_own_and_nothing_else():
    move = a_move()
    here, elsewhere = torch.zeros(3), torch.zeros((), device="meta")
    assert can_undo_on_device(with_state(move, buffer=here), move)
    assert can_undo_on_device(with_state(move, buffer=here, none=None), move)
    assert not can_undo_on_device(with_state(move, buffer=here, step=elsewhere), move)
    assert not can_undo_on_device(with_state(move, buffer=here, step=3), move)
    assert not can_undo_on_device(
        with_state(move), move
    )  # momentum that is not there yet cannot be taken away


def test_a_mask_of_rows_ends_only_on_the_host():
    started = torch.zeros(3, dtype=torch.bool)
    for rows, can in ((None, False), (torch.tensor([1]), True)):
        move = a_move(rows)
        assert can_undo_on_device(with_state(move, buffer=torch.zeros(3), started=started), move) == can


def test_plain_gradient_ascent_keeps_nothing_that_could_not_be_undone():
    move = a_move()
    plain = torch.optim.SGD([move.multiplier], lr=0.1, maximize=True)
    assert can_undo_on_device(plain, move)
    assert can_undo_on_device(nupi.NuPI([move.multiplier], ki=0.1), move)
    assert not can_undo_on_device(nupi.NuPI([move.multiplier], ki=0.1, kp=1.0), move)
    assert not can_undo_on_device(torch.optim.Adam([move.multiplier], maximize=True), move)
