"""Indexed violations: how they are shown, which rows their gains are, and wrong indices where the host cannot look."""

import pytest
import torch
from accelerators import act_as_an_accelerator

import nupi
from nupi.violations import Violation


@pytest.mark.parametrize(
    ("count", "shown"), [(3, "0, 1, 2]"), (8, "6, 7]"), (9, "6, 7, …]"), (20, "6, 7, …]")]
)
def test_a_long_one_is_shown_by_its_first_indices(count, shown):
    text = repr(nupi.Indexed(torch.zeros(count), torch.arange(count)))
    assert text.startswith(f"Indexed({count} values at [0, 1")
    assert text.endswith(f"{shown})")


def test_a_keyword_that_no_kind_of_violation_has_is_refused():
    with pytest.raises(TypeError):

        class Wrong(Violation, colour="red"):
            pass


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", ["(n,)", "(n, 2)"])
def test_every_row_has_its_own_gain(size, shape):
    """The last row alone, of a group of two and of three. Of two steps from zero the second has the jump of kp e."""
    trailing = () if shape == "(n,)" else (2,)
    ki = torch.arange(1.0, size + 1).reshape(-1, *(1,) * len(trailing)).expand(size, *trailing).clone()
    kp = 10 * ki
    lagrangian = nupi.Lagrangian({"c": nupi.Equality((size, *trailing))})
    dual = nupi.NuPI(lagrangian.parameters(), ki=ki, kp=kp, init="zero", form="velocity")
    rows = torch.tensor([size - 1])
    for _ in range(2):
        lagrangian.ascend(dual, {"c": nupi.Indexed(torch.ones(1, *trailing), rows)})
    expected = torch.zeros(size, *trailing)
    expected[-1] = (2 + 10) * size
    torch.testing.assert_close(lagrangian.multipliers["c"], expected)


@pytest.mark.parametrize("index", [-1, 1, 7])
def test_a_wrong_index_of_a_single_constraint_is_refused_where_the_host_cannot_look(index, monkeypatch):
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    lagrangian.ascend(dual, {"c": torch.ones(1)})
    act_as_an_accelerator(monkeypatch)
    lagrangian.ascend(dual, {"c": nupi.Indexed(torch.ones(1), torch.tensor([index]))})
    with pytest.raises(nupi.NonFiniteViolationError, match="'c'"):
        lagrangian.check()
    assert lagrangian.multipliers["c"].item() == pytest.approx(0.1)
    lagrangian.ascend(dual, {"c": nupi.Indexed(torch.ones(1), torch.tensor([0]))})
    lagrangian.check()
    assert lagrangian.multipliers["c"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("size", [1, 3])
def test_no_rows_at_all_move_nothing(size):
    lagrangian = nupi.Lagrangian({"c": nupi.Equality(size, init=2.0)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0)
    nothing = {"c": nupi.Indexed(torch.zeros(0), torch.zeros(0, dtype=torch.int64))}
    lagrangian.ascend(dual, nothing)
    assert lagrangian(torch.ones(()), nothing).item() == 1.0
    assert lagrangian.multipliers["c"].tolist() == [2.0] * size


def test_the_first_and_the_last_row_are_rows():
    lagrangian = nupi.Lagrangian({"c": nupi.Equality(3)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    lagrangian.ascend(dual, {"c": nupi.Indexed(torch.tensor([5.0, 7.0]), torch.tensor([0, 2]))})
    assert lagrangian.multipliers["c"].tolist() == [5.0, 0.0, 7.0]
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="numbered 0 to 2"):
            lagrangian.ascend(dual, {"c": nupi.Indexed(torch.ones(1), torch.tensor([wrong]))})


def test_indices_on_another_device_are_named():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(3)})
    seen = nupi.Indexed(torch.ones(1), torch.zeros(1, dtype=torch.long, device="meta"))
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    with pytest.raises(ValueError, match="the indices of 'a' is on meta, but its multiplier is on cpu"):
        lagrangian.ascend(dual, {"a": seen})
