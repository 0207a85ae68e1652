"""Options that change in the middle of a run, narrow parameters beside each other, and gains for some rows."""

import pytest
import torch

import nupi


def moved(dual, param, *errors):
    for error in errors:
        param.grad = torch.full_like(param, error)
        dual.step()
    return param.clone()


@pytest.mark.parametrize("before", ["velocity", "conditional"])
def test_another_form_goes_on_from_where_the_multiplier_is(before):
    """Without bounds all forms are one controller: the new one begins with gradient ascent's step, from theta."""
    param = torch.zeros(1)
    dual = nupi.NuPI([param], ki=0.1, kp=1.0, form=before)
    theta = moved(dual, param, 1.0, 2.0, 2.0)
    dual.param_groups[0]["form"] = "positional"
    torch.testing.assert_close(moved(dual, param, 2.0), theta + 0.2)
    torch.testing.assert_close(moved(dual, param, 3.0), theta + 0.2 + 0.3 + 1.0)


def test_a_gain_for_each_constraint_is_kept_in_the_dtype_of_the_multipliers():
    dual = nupi.NuPI([torch.zeros(2)], ki=torch.ones(2, dtype=torch.float64))
    assert dual.param_groups[0]["ki"].dtype == torch.float32


def test_gains_that_are_tensors_follow_multipliers_that_become_wider():
    param = torch.zeros(1)
    ki, kp, nu = torch.tensor(0.1), torch.tensor(0.7), torch.tensor(0.25)
    dual = nupi.NuPI([param], ki=ki, kp=kp, nu=nu)
    before = moved(dual, param, 1.0).item()
    param.data = param.data.double()
    # In float32 kp times 1 - nu would be off by 1e-8.
    wanted = before + 2 * ki.item() + 0.75 * kp.item()
    assert moved(dual, param, 2.0).item() == pytest.approx(wanted, rel=1e-12)


def test_narrow_parameters_move_together_as_each_would_alone():
    start, errors = [0.3, -1.7], [0.013, 0.0071, -0.021]

    def run(count):
        params = [torch.full((3,), value, dtype=torch.bfloat16) for value in start[:count]]
        dual = nupi.NuPI(params, ki=0.37, kp=1.3, nu=0.4)
        for error in errors:
            for param in params:
                param.grad = torch.full_like(param, error)
            dual.step()
        return params, dual

    (both, dual), (alone, its) = run(2), run(1)
    assert torch.equal(both[0], alone[0])
    assert torch.equal(dual.state[both[0]]["xi"], its.state[alone[0]]["xi"])
    assert dual.state[both[0]]["xi"].dtype == torch.float32


def test_a_gain_for_each_row_goes_with_its_row():
    param = torch.zeros(2)
    dual = nupi.NuPI([param], ki=torch.tensor([0.1, 0.2]))
    param.grad = torch.sparse_coo_tensor([[1]], [3.0], (2,), check_invariants=True)
    dual.step()
    torch.testing.assert_close(param, torch.tensor([0.0, 0.6]))


def test_a_gain_for_each_number_goes_with_it_where_a_sparse_gradient_has_two_dimensions():
    param, ki = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3) / 10
    dual = nupi.NuPI([param], ki=ki)
    param.grad = torch.sparse_coo_tensor([[0, 1], [2, 1]], [1.0, 2.0], (2, 3), check_invariants=True)
    dual.step()
    torch.testing.assert_close(param, torch.tensor([[0.0, 0.0, 0.2], [0.0, 0.8, 0.0]]))


def test_a_gain_for_each_column_goes_with_it_where_a_sparse_gradient_has_two_dimensions():
    param = torch.zeros(2, 3)
    dual = nupi.NuPI([param], ki=torch.tensor([0.1, 0.2, 0.3]))
    param.grad = torch.sparse_coo_tensor([[0, 1], [2, 1]], [1.0, 2.0], (2, 3), check_invariants=True)
    dual.step()
    torch.testing.assert_close(param, torch.tensor([[0.0, 0.0, 0.3], [0.0, 0.4, 0.0]]))


def test_rows_of_a_parameter_that_is_not_contiguous_move_and_parts_of_rows_are_refused():
    param = torch.zeros(3, 2).T
    dual = nupi.NuPI([param], ki=0.5)
    param.grad = torch.sparse_coo_tensor([[1]], [[1.0, 2.0, 3.0]], (2, 3), check_invariants=True)
    dual.step()
    torch.testing.assert_close(param, torch.tensor([[0.0, 0.0, 0.0], [0.5, 1.0, 1.5]]))
    param.grad = torch.sparse_coo_tensor([[1], [0]], [1.0], (2, 3), check_invariants=True)
    with pytest.raises(ValueError, match="over 2 dimensions needs a contiguous parameter"):
        dual.step()


def test_state_of_fewer_dimensions_than_its_parameter_is_refused():
    param = torch.zeros(2, 3)
    dual = nupi.NuPI([param], ki=0.1, kp=1.0)
    moved(dual, param, 1.0)
    saved = dual.state_dict()
    saved["state"][0] = {"xi": torch.ones(2)}
    with pytest.raises(
        ValueError, match=r"holds 'xi' of shape \(2,\) for parameter 0, whose shape is \(2, 3\)"
    ):
        dual.load_state_dict(saved)


def test_a_gradient_that_was_there_before_a_watched_step_is_there_after_it():
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    multiplier = lagrangian.get_parameter("c")
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    dual.register_step_post_hook(lambda *_: None)
    multiplier.grad = torch.tensor([7.0])
    lagrangian.ascend(dual, {"c": torch.tensor(2.0)})
    assert multiplier.grad.item() == 7.0
    assert multiplier.item() == pytest.approx(0.2)


def test_the_step_size_of_pid_is_checked():
    with pytest.raises(ValueError, match="lr must lie in"):
        nupi.PID([torch.zeros(1)], 0.1, 1.0, 0.5, lr=-1.0)


@pytest.mark.parametrize("gains", [{"ki": 0.1}, {"ki": 0.1, "kp": 0.7}], ids=["I", "PI"])
def test_pid_without_its_other_gains_neither_smooths_nor_damps(gains):
    errors, param = [1.0, 3.0, -2.0, 0.5], torch.zeros(1, dtype=torch.float64)
    dual = nupi.PID([param], **gains)
    path = [moved(dual, param, error).item() for error in errors]
    integral = [0.1 * sum(errors[: t + 1]) for t in range(4)]
    wanted = [total + gains.get("kp", 0.0) * error for total, error in zip(integral, errors, strict=True)]
    assert path == pytest.approx(wanted)


def test_state_that_begins_late_leaves_the_smoothed_error_alone():
    """The velocity form keeps no excess beyond the bounds; the conditional one begins it, and xi stays what it was."""
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, form="velocity")
    lagrangian.ascend(dual, {"a": torch.tensor(1.0)})
    dual.param_groups[0]["form"] = "conditional"
    lagrangian.ascend(dual, {"a": torch.tensor(3.0)})
    # 0.1 from the first error; then 0.3, and kp (3 - 1), since the error before is known.
    assert lagrangian.multipliers["a"].item() == pytest.approx(0.1 + 0.3 + 2.0)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_rows_that_have_not_started_start_when_groups_move_together(foreach):
    """A row takes its first step, without the jump of kp, when its first error comes; those before it do not wait."""
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(2), "b": nupi.Equality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, foreach=foreach)
    for name in ("a", "b"):
        lagrangian.ascend(dual, {name: nupi.Indexed(torch.tensor([1.0]), torch.tensor([0]))})
    lagrangian.ascend(dual, {"a": torch.tensor([3.0, 3.0]), "b": torch.tensor([2.0, 2.0])})
    torch.testing.assert_close(lagrangian.multipliers["a"], torch.tensor([0.1 + 0.3 + 2.0, 0.3]))
    torch.testing.assert_close(lagrangian.multipliers["b"], torch.tensor([0.1 + 0.2 + 1.0, 0.2]))
    lagrangian.ascend(dual, {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0, 4.0])})
    torch.testing.assert_close(lagrangian.multipliers["a"], torch.tensor([2.4 + 0.3, 0.3 + 0.4 + 1.0]))
