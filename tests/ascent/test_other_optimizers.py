"""Torch's own optimizers as duals, with violations that were seen in part: rows stay, layouts may change."""

import copy

import pytest
import torch
from accelerators import act_as_an_accelerator

import nupi

DENSE = {
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, maximize=True),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "decay": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, maximize=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, maximize=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1, maximize=True),
    "decaying Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=0.1, maximize=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, maximize=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, maximize=True),
}
ALL = {**DENSE, "SparseAdam": lambda p: torch.optim.SparseAdam(p, 0.1, maximize=True)}


def problem(make, shape=(3,)):
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(shape, init=1.0), "b": nupi.Inequality()})
    return lagrangian, make(list(lagrangian.parameters()))


def kept(lagrangian, dual):
    """The multipliers of `a`, and all that a dual keeps for them row by row."""
    theta = lagrangian.get_parameter("a")
    rows = {
        slot: value
        for slot, value in dual.state[theta].items()
        if isinstance(value, torch.Tensor) and value.dim()
    }
    return copy.deepcopy({"theta": theta.data, **rows})


def averaged(*counts, shape=(3,)):
    sums = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)
    return {"a": nupi.Averaged(sums, torch.tensor(counts))}


@pytest.mark.parametrize("blind", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("shape", [(3,), (3, 2)], ids=str)
@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_a_row_that_nothing_was_counted_for_is_left_alone_by_any_optimizer(make, shape, blind, monkeypatch):
    lagrangian, dual = problem(make, shape)
    lagrangian.ascend(dual, averaged(1, 2, 4, shape=shape))
    if blind:
        act_as_an_accelerator(monkeypatch)
    before = kept(lagrangian, dual)
    lagrangian.ascend(dual, averaged(1, 0, 2, shape=shape))
    after = kept(lagrangian, dual)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name][1], after[name][1]) for name in before)
    assert (before["theta"][[0, 2]] != after["theta"][[0, 2]]).all()
    lagrangian.ascend(dual, averaged(1, 1, 1, shape=shape))
    assert (kept(lagrangian, dual)["theta"] != after["theta"]).all()


@pytest.mark.parametrize("name", ["momentum", "nesterov", "Rprop", "SGD"])
def test_a_row_moves_as_if_the_steps_it_was_not_in_had_never_been(name):
    """Of optimizers that count no steps: row 1 is in steps 0 and 3, the others in all."""
    lagrangian, dual = problem(DENSE[name])
    plain = torch.ones(1, requires_grad=True)
    alone = DENSE[name]([plain])
    for counts in ((1, 1, 1), (1, 0, 1), (2, 0, 1), (1, 2, 1)):
        lagrangian.ascend(dual, averaged(*counts))
        if counts[1]:
            plain.grad = torch.tensor([2.0 / counts[1]])
            alone.step()
    assert lagrangian.multipliers["a"][1].item() == pytest.approx(plain.item())


@pytest.mark.parametrize("name", ["momentum", "nesterov", "decay", "decaying Adagrad"])
def test_rows_and_whole_groups_may_take_turns(name):
    """Indexed violations are errors of 0 elsewhere to an optimizer that has a memory of its own."""
    lagrangian, dual = problem(DENSE[name])
    plain, its_dual = problem(DENSE[name])
    for rows in ([0, 2], [0, 1, 2], [1]):
        error = torch.zeros(3)
        error[rows] = 1.0
        lagrangian.ascend(dual, {"a": nupi.Indexed(torch.ones(len(rows)), torch.tensor(rows))})
        lagrangian.ascend(dual, {"a": torch.ones(3), "b": torch.ones(1)})
        plain.ascend(its_dual, {"a": error})
        plain.ascend(its_dual, {"a": torch.ones(3), "b": torch.ones(1)})
    assert torch.equal(lagrangian.multipliers["a"], plain.multipliers["a"])


def test_a_momentum_that_was_kept_sparse_goes_on():
    lagrangian, dual = problem(DENSE["momentum"])
    theta = lagrangian.get_parameter("a")
    theta.grad = torch.tensor([1.0, 0.0, 0.0]).to_sparse()
    dual.step()
    theta.grad = None
    assert dual.state[theta]["momentum_buffer"].is_sparse
    lagrangian.ascend(dual, {"a": torch.ones(3)})
    torch.testing.assert_close(lagrangian.multipliers["a"], torch.tensor([1.29, 1.1, 1.1]))


def test_a_restart_does_not_reach_rows_that_were_not_seen():
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(3, init=1.0, restart=True)})
    dual = torch.optim.Adam(lagrangian.parameters(), 0.1, maximize=True)
    lagrangian.ascend(dual, {"a": nupi.Averaged(torch.tensor([-1.0, -1.0, 1.0]), torch.tensor([1, 0, 1]))})
    assert lagrangian.multipliers["a"].tolist() == pytest.approx([0.0, 1.0, 1.1])


def test_a_plain_tensor_serves_an_optimizer_that_takes_sparse_gradients_alone():
    lagrangian, dual = problem(ALL["SparseAdam"])
    plain, its_dual = problem(lambda p: torch.optim.Adam(p, 0.1, maximize=True))
    for each, its in ((lagrangian, dual), (plain, its_dual)):
        each.ascend(its, {"a": torch.tensor([1.0, -2.0, 0.5]), "b": torch.tensor(1.0)})
    for name, multiplier in plain.multipliers.items():
        torch.testing.assert_close(lagrangian.multipliers[name], multiplier)
