"""What the Lagrangian refuses, each with an error that names the trouble, and nothing lost by it."""

import pytest
import torch
from test_lagrangian import assert_unchanged, problem, snapshot, some_steps

import nupi
from nupi import rates


def indexed(*indices, values=None):
    return nupi.Indexed(torch.ones(len(indices)) if values is None else values, torch.tensor(indices))


@pytest.mark.parametrize(
    ("violations", "error", "message"),
    [
        (
            {"fare": torch.zeros(3)},
            KeyError,
            "'fare', which is not a constraint here; the constraints are 'fair'",
        ),
        ({"fair": torch.zeros(())}, ValueError, r"'fair' has shape \(\), but its group has shape \(3,\)"),
        ({"fair": torch.zeros(1)}, ValueError, "never broadcast"),
        ({"fair": torch.zeros(3, 1)}, ValueError, r"shape \(3, 1\)"),
        ({"small": torch.zeros(3)}, ValueError, r"'small' has shape \(3,\)"),
        (
            {"fair": 0.5},
            TypeError,
            "'fair' must be a tensor, Indexed, Averaged or Measured, but it is a float; .* without .item",
        ),
        ({"fair": lambda: torch.zeros(3)}, TypeError, "it is a function; call it, and give the tensor"),
        (
            {"fair": torch.zeros(3, dtype=torch.int64)},
            TypeError,
            r"torch.int64, not floating-point; use .float\(\)",
        ),
        ({"fair": torch.zeros(3, device="meta")}, ValueError, "on meta, but its multiplier is on cpu"),
        ({"fair": torch.eye(3)[0].to_sparse()}, TypeError, r"sparse tensor; give its parts as Indexed"),
        (
            {"fair": indexed(0, 3)},
            IndexError,
            "'fair' run from 0 to 3, but its constraints are numbered 0 to 2",
        ),
        ({"fair": indexed(-1)}, IndexError, "from -1 to -1"),
        ({"fair": indexed(0, values=torch.ones(1, 2))}, ValueError, "one row of the group per index"),
        (
            {"fair": indexed(0, values=torch.ones(1, dtype=torch.int64))},
            TypeError,
            "'fair' is torch.int64, not floating-point",
        ),
        ([torch.zeros(3)], TypeError, "violations must map constraint names to tensors, but a list came"),
    ],
)
def test_a_wrong_violation_is_refused_before_anything_moves(violations, error, message):
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    good = {"small": torch.tensor(1.0)}
    both = (
        {**good, **violations} if isinstance(violations, dict) and "small" not in violations else violations
    )
    with pytest.raises(error, match=message):
        lagrangian.ascend(dual, both)
    with pytest.raises(error, match=message):
        lagrangian(torch.zeros(()), both)
    assert_unchanged(before, lagrangian, dual)


def test_a_fault_within_a_mapping_of_the_users_own_is_shown_as_it_is():
    class Lazy(dict):
        def items(self):
            return self.batch.items()  # there is no batch yet

    lagrangian, dual = problem()
    with pytest.raises(AttributeError, match="no attribute 'batch'"):
        lagrangian.ascend(dual, Lazy(fair=torch.zeros(3)))


def test_a_boolean_mask_is_not_indices():
    with pytest.raises(TypeError, match=r"boolean mask; pass the positions instead: mask.nonzero\(\)"):
        nupi.Indexed(torch.ones(3), torch.tensor([True, False, True]))


@pytest.mark.parametrize(
    ("values", "indices", "error"),
    [
        (torch.ones(2), torch.tensor([0.0, 1.0]), TypeError),
        (torch.ones(2), torch.tensor([0]), ValueError),
        (torch.ones(2), torch.tensor([[0, 1]]), ValueError),
        (torch.tensor(1.0), torch.tensor(0), ValueError),
        ([1.0], [0], TypeError),
    ],
)
def test_indexed_refuses_what_does_not_pair_up(values, indices, error):
    with pytest.raises(error, match=r"indices"):
        nupi.Indexed(values, indices)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: nupi.Inequality(init=-0.1), ValueError, "init=-0.1 is negative.*start it at 0 or above"),
        (lambda: nupi.Inequality(2, init=torch.tensor([0.0, -1.0])), ValueError, "is negative"),
        (
            lambda: nupi.Equality(2, init=torch.zeros(3)),
            ValueError,
            r"init has shape \(3,\), but the group has",
        ),
        (lambda: nupi.Equality(init=float("nan")), ValueError, "init must be finite"),
        (lambda: nupi.Equality(0), ValueError, "size must be the number of constraints.* but 0 came"),
        (
            lambda: nupi.Inequality(0.05),
            ValueError,
            "0.05 came. A limit goes into the violation: rate - 0.05",
        ),
        (lambda: nupi.Equality((2, -1)), ValueError, "size must be"),
        (lambda: nupi.Equality(2.0), ValueError, "size must be"),
        (lambda: nupi.Equality(None), ValueError, "size must be"),
        (lambda: nupi.Equality((-2, -3)), ValueError, "size must be"),
        (lambda: nupi.Equality(2, init=None), TypeError, "init must be a number or a tensor"),
        (lambda: nupi.Equality(True), ValueError, "size must be"),
        (lambda: nupi.Lagrangian({}), TypeError, "at least one name"),
        (lambda: nupi.Lagrangian({"": nupi.Equality()}), TypeError, "a string that is not empty"),
        (lambda: nupi.Lagrangian({3: nupi.Equality()}), TypeError, "a string"),
        (
            lambda: nupi.Lagrangian({"a": 3}),
            TypeError,
            "constraint 'a' must be an Equality, Inequality or Band",
        ),
        (lambda: nupi.Lagrangian({"a": nupi.Band}), TypeError, r"but .* came; call it: Band\(\)"),
        (
            lambda: nupi.Lagrangian({"a": rates.recall() >= 0.9}),
            TypeError,
            r"but .* came; give its .kind\(\)",
        ),
        (
            lambda: nupi.Lagrangian({"a": (rates.recall() >= 0.9).kind}),
            TypeError,
            r"but .* came; call it: kind\(\)",
        ),
        (lambda: nupi.Lagrangian([nupi.Equality()]), TypeError, "constraints must map"),
    ],
)
def test_a_wrong_constraint_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    "build",
    [lambda m: nupi.NuPI(m, ki=0.1), lambda m: nupi.SelfTuned(m, steps=10), lambda m: nupi.PID(m, ki=0.1)],
)
def test_a_dual_of_the_lagrangian_itself_is_refused(build):
    lagrangian, _ = problem()
    with pytest.raises(TypeError, match=r"a Lagrangian came; pass lagrangian.parameters\(\)"):
        build(lagrangian)


def test_a_model_in_place_of_its_optimizer_is_refused():
    lagrangian, _ = problem()
    with pytest.raises(
        TypeError, match=r"primal must be the optimizer of the model.*a model came \(Linear\)"
    ):
        nupi.SelfTuned(lagrangian.parameters(), steps=10, primal=torch.nn.Linear(1, 1))


def test_a_violation_without_a_gradient_is_warned_of_once_by_name():
    lagrangian, _ = problem()
    loss = torch.ones((), requires_grad=True)
    flat, smooth = torch.zeros(3), torch.zeros(1, requires_grad=True)
    with pytest.warns(UserWarning, match=r"'fair' has no gradient.*nupi.Measured") as seen:
        lagrangian(loss, {"fair": flat, "small": smooth})
    lagrangian(loss, {"fair": flat, "small": smooth})  # warnings are errors here
    assert len(seen) == 1
    assert seen[0].filename == __file__  # it points at the line of the caller


def test_no_gradient_is_expected_in_evaluations_and_of_the_hard_side():
    lagrangian, _ = problem()  # warnings are errors here
    lagrangian(torch.ones(()), {"fair": torch.zeros(3)})
    loss = torch.ones((), requires_grad=True)
    with torch.no_grad():
        lagrangian(loss, {"fair": torch.zeros(3)})
    soft = torch.zeros(3, requires_grad=True)
    lagrangian(loss, {"fair": nupi.Measured(soft, torch.zeros(3))})


def test_a_loss_that_is_no_scalar_is_refused():
    lagrangian, _ = problem()
    with pytest.raises(ValueError, match=r"loss must be a scalar, but has shape \(4,\)"):
        lagrangian(torch.zeros(4), {})
    with pytest.raises(TypeError, match="loss must be a scalar tensor, but a float came"):
        lagrangian(1.0, {})


def test_a_dual_that_is_no_optimizer_is_refused():
    lagrangian, dual = problem()
    with pytest.raises(TypeError, match="dual must be a torch optimizer"):
        lagrangian.ascend(None, {"small": torch.tensor(1.0)})
    with pytest.raises(TypeError, match="but a list came; call ascend once for each"):
        lagrangian.ascend([dual, dual], {"small": torch.tensor(1.0)})


def test_a_minimizing_dual_is_refused():
    lagrangian, _ = problem()
    for dual in (
        torch.optim.SGD(lagrangian.parameters(), 0.1),
        torch.optim.LBFGS(lagrangian.parameters()),
        nupi.NuPI(lagrangian.parameters(), 0.1, maximize=False),
    ):
        before = snapshot(lagrangian, dual)
        kind = type(dual).__name__
        with pytest.raises(
            ValueError, match=f"would minimize.*({kind} with maximize=True|{kind} cannot maximize)"
        ):
            lagrangian.ascend(dual, {"small": torch.tensor(1.0)})
        assert_unchanged(before, lagrangian, dual)


def test_a_dual_that_does_not_hold_the_multiplier_is_refused():
    lagrangian, _ = problem()
    dual = nupi.NuPI([lagrangian.get_parameter("small")], 0.1)
    with pytest.raises(
        ValueError, match=r"does not hold the multiplier of 'fair'.*lagrangian.parameters\(\)"
    ):
        lagrangian.ascend(dual, {"small": torch.tensor(1.0), "fair": torch.zeros(3)})
    assert lagrangian.multipliers["small"].item() == 0


def test_an_optimizer_that_takes_no_sparse_gradients_says_so_and_nothing_is_left_behind():
    lagrangian, _ = problem()
    dual = torch.optim.Adam(lagrangian.parameters(), 0.1, maximize=True)
    with pytest.raises(RuntimeError, match="Adam takes no Indexed violations, but 'fair' came as such"):
        lagrangian.ascend(dual, {"fair": indexed(0)})
    assert not dual.state
    with pytest.raises(RuntimeError, match="Adam takes no Indexed violations, but 'small' came as such"):
        lagrangian.ascend(
            dual, {"fair": torch.ones(3), "small": nupi.Indexed(torch.ones(1), torch.tensor([0]))}
        )
    assert not dual.state
    assert all(p.grad is None for p in lagrangian.parameters())
    assert lagrangian.multipliers["fair"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("sums", "counts"), [([1.0], torch.ones(1)), (torch.ones(1), 2)])
def test_averaged_of_what_is_no_tensor_is_refused(sums, counts):
    with pytest.raises(
        TypeError, match=r"Averaged takes two tensors, but sums is a .*; wrap them in torch\.tensor"
    ):
        nupi.Averaged(sums, counts)


def test_a_way_to_join_ranks_that_is_none_is_refused():
    with pytest.raises(ValueError, match='reduce must be "mean", "sum" or None, but \'max\' came'):
        nupi.Lagrangian({"c": nupi.Equality()}, reduce="max")


@pytest.mark.parametrize("count", [-1.0, float("inf"), float("nan")])
def test_counts_that_are_none_are_refused(count):
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    with pytest.raises(ValueError, match="the counts of 'c' must be finite and >= 0"):
        lagrangian.ascend(dual, {"c": nupi.Averaged(torch.ones(2), torch.tensor([1.0, count]))})
    assert lagrangian.multipliers["c"].tolist() == [0.0, 0.0]
