"""On an accelerator nothing waits: torch's meta device computes no values, so a look at one raises.

What a real device would add, that copies arrive, is stood in for by a copy that says it has not arrived yet.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nupi
from nupi.monitor import sampler
from nupi.monitor.columns import Columns
from nupi.monitor.gains import GainReader

LOOKS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.masked_select.default,
}


class NoLook(TorchDispatchMode):
    """Raises where the host would have to wait for a value."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in LOOKS, f"the host looks at a value in {func}"
        return func(*args, **(kwargs or {}))


class Move:
    def __init__(self, name, multiplier, error, rows=None):
        self.name, self.multiplier, self.error, self.rows = name, multiplier, error, rows


CONSTRAINTS = {"one": nupi.Inequality(), "few": nupi.Equality(5), "many": nupi.Inequality(300)}


def steps(device, count):
    for _ in range(count):
        moves = [
            Move(name, torch.zeros(c.shape, device=device), torch.ones(c.shape, device=device))
            for name, c in CONSTRAINTS.items()
        ]
        yield moves
        rows = torch.arange(6, device=device)
        yield [Move("many", torch.zeros(300, device=device), torch.ones(6, device=device), rows)]


def test_rows_are_made_on_the_device_without_a_look():
    taking = sampler.Sampler(Columns.of(CONSTRAINTS))
    for number, moves in enumerate(steps("meta", 20), 1):
        taking.take(number, moves)
    numbers, rows = taking.rows()
    assert rows.device.type == "meta"
    assert rows.shape == (40, taking.columns.count)
    assert sorted(numbers) == list(range(1, 41))


def test_the_guard_of_this_test_can_fail():
    with NoLook(), pytest.raises(AssertionError, match="looks at a value"):
        torch.ones(1).item()


def test_no_look_from_the_ascend_to_the_arrival(monkeypatch):
    """The whole way of a monitor on numbers that are real, with every look forbidden until they have arrived."""
    from nupi.monitor import monitor as module

    class Late(module.Arrival):
        here = False

        def ready(self):
            return self.here

    monkeypatch.setattr(module, "Arrival", Late)
    lagrangian = nupi.Lagrangian(CONSTRAINTS)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=torch.tensor(0.5))
    monitor = nupi.Monitor(lagrangian, warn=False)

    class Step:
        def __init__(self, moves):
            self.dual, self.moves = dual, moves

    with NoLook():
        for moves in steps("cpu", 800):
            monitor(Step(moves))
    assert len(monitor._record) == 0
    assert len(monitor._arrivals) >= 3
    Late.here = True
    assert len(monitor.record) == 1600
    assert monitor.record.gains_of("one").latest["kp"] == 0.5


def test_gains_on_a_device_are_not_looked_at():
    multiplier = torch.zeros(3)
    dual = nupi.NuPI([multiplier], ki=torch.tensor([0.1, 0.2, 0.3]))
    reader = GainReader({"a": multiplier})
    with NoLook():
        for step in range(5):
            reader.look(step, dual)
    assert len(reader.taken()) == 1
