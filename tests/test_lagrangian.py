import copy
import io
import pickle
import re

import pytest
import torch
from problems import assert_unchanged, problem, snapshot, some_steps
from torch import nn

import nupi

NAMES = [
    "layer1.0.conv",
    "a b",
    "forward",
    "training",
    "density",
    "_refused",
    "_look",
    "constraints",
    "_parameters",
]


def test_the_lagrangian_is_the_loss_plus_each_multiplier_times_its_violation():
    lagrangian, _ = problem()
    with torch.no_grad():
        lagrangian.multipliers["fair"].copy_(torch.tensor([1.0, -2.0, 0.5]))
        lagrangian.multipliers["small"].fill_(3.0)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    value = lagrangian((x**2).sum(), {"fair": 2 * x, "small": x.sum()})
    assert value.item() == pytest.approx(14 + (2 - 8 + 3) + 18)
    value.backward()
    assert x.grad.tolist() == pytest.approx([2 + 2 + 3, 4 - 4 + 3, 6 + 1 + 3])
    assert all(parameter.grad is None for parameter in lagrangian.parameters())


def test_names_may_be_anything_and_order_is_theirs_not_the_mappings():
    forward = nupi.Lagrangian({name: nupi.Equality(i + 1) for i, name in enumerate(NAMES)})
    backward = nupi.Lagrangian({name: nupi.Equality(NAMES.index(name) + 1) for name in reversed(NAMES)})
    assert [p.shape for p in forward.parameters()] == [p.shape for p in backward.parameters()]
    dual = nupi.NuPI(forward.parameters(), 0.1, 1.0)
    some_steps(forward, dual)
    again = nupi.NuPI(backward.parameters(), 0.1, 1.0)
    backward.load_state_dict(forward.state_dict())
    again.load_state_dict(dual.state_dict())
    some_steps(forward, dual, seed=1)
    some_steps(backward, again, seed=1)
    for name in NAMES:
        assert torch.equal(forward.multipliers[name], backward.multipliers[name])
    assert set(forward.state_dict()) == set(NAMES)
    assert not forward.eval().training
    assert forward.train().training
    forward.check()
    assert forward(torch.zeros(()), {"forward": torch.ones(3)}).shape == ()


@pytest.mark.parametrize("size", [1, 5, (2, 3), ()], ids=str)
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_groups_of_any_shape(kind, size):
    lagrangian = nupi.Lagrangian({"c": kind(size)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    violation = torch.arange(-2.0, 4.0)[: lagrangian.multipliers["c"].numel()].reshape(
        lagrangian.multipliers["c"].shape
    )
    lagrangian.ascend(dual, {"c": violation})
    expected = violation if kind is nupi.Equality else violation.clamp(min=0)
    assert torch.equal(lagrangian.multipliers["c"], expected)


def test_a_scalar_may_stand_for_a_single_constraint():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    x = torch.tensor(2.0, requires_grad=True)
    lagrangian.ascend(dual, {"c": x})
    lagrangian(torch.zeros(()), {"c": x}).backward()
    assert lagrangian.multipliers["c"].tolist() == [2.0]
    assert x.grad.item() == 2.0


def test_absent_constraints_are_left_alone():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before, state = (
        lagrangian.multipliers["fair"].clone(),
        dual.state[lagrangian._parameters["fair"]]["xi"].clone(),
    )
    lagrangian.ascend(dual, {"small": torch.tensor(1.0)})
    assert torch.equal(lagrangian.multipliers["fair"], before)
    assert torch.equal(dual.state[lagrangian._parameters["fair"]]["xi"], state)
    lagrangian.ascend(dual, {})


def test_a_stale_gradient_of_an_absent_constraint_moves_nothing():
    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(), "b": nupi.Inequality(init=1.0)}).requires_grad_()
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    x = torch.tensor(1.0, requires_grad=True)
    lagrangian(x * x, {"a": x - 2, "b": x - 20}).backward()
    stale = lagrangian.get_parameter("b").grad.clone()
    lagrangian.ascend(dual, {"a": x - 2})
    assert lagrangian.multipliers["b"].item() == 1.0
    assert torch.equal(lagrangian.get_parameter("b").grad, stale)


def test_a_hook_may_clip_the_error_without_touching_the_violation():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    dual.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(lagrangian.parameters(), 0.5))
    violation = torch.tensor([2.0])
    lagrangian.ascend(dual, {"a": violation})
    assert violation.item() == 2.0
    assert lagrangian.multipliers["a"].item() == 0.5


def test_violations_may_be_measured_in_inference_mode():
    for make in (lambda p: nupi.NuPI(p, 0.1, 1.0), lambda p: nupi.PID(p, 0.1, 1.0, 1.0)):
        lagrangian = nupi.Lagrangian({"a": nupi.Inequality(2)})
        dual = make(lagrangian.parameters())
        with torch.inference_mode():
            lagrangian.ascend(dual, {"a": torch.ones(2)})
        lagrangian.ascend(dual, {"a": torch.ones(2)})
        with torch.inference_mode():
            lagrangian.ascend(dual, {"a": torch.ones(2)})
        x = torch.ones(2, requires_grad=True)
        lagrangian(x.sum(), {"a": x}).backward()


@pytest.mark.parametrize("form", ["velocity", "positional"])
def test_state_and_gains_follow_a_problem_that_changes_dtype(form):
    errors = [
        torch.tensor([1.0, -0.5, 0.25]),
        torch.tensor([0.5, 0.5, 0.5]),
        torch.tensor([-1.0, 2.0, 0.125]),
    ]

    def run(changes):
        lagrangian = nupi.Lagrangian({"a": nupi.Equality(3)})
        gains = {"ki": torch.tensor([0.5, 0.25, 1.0]), "kp": 2.0, "nu": torch.tensor(0.5)}
        dual = nupi.NuPI(lagrangian.parameters(), **gains, form=form)
        for error, change in zip(errors, changes, strict=True):
            lagrangian.to(change)
            lagrangian.ascend(dual, {"a": error.to(change)})
        return lagrangian.multipliers["a"].float()

    single, double = torch.float32, torch.float64
    assert torch.equal(run([single] * 3), run([single, double, double]))
    assert torch.equal(run([single] * 3), run([double, single, double]))


def test_a_checkpoint_of_another_dtype_loads():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    wide, its_dual = problem()
    wide.double()
    wide.load_state_dict(lagrangian.state_dict())
    its_dual.load_state_dict(dual.state_dict())
    violations = {"fair": torch.tensor([1.0, 0.5, -1.0])}
    lagrangian.ascend(dual, violations)
    wide.ascend(its_dual, {"fair": violations["fair"].double()})
    torch.testing.assert_close(wide.multipliers["fair"].float(), lagrangian.multipliers["fair"])


def test_constraints_may_have_optimizers_of_their_own():
    lagrangian = nupi.Lagrangian({"a": nupi.Equality(), "b": nupi.Equality()})
    first = nupi.NuPI([lagrangian.get_parameter("a")], ki=1.0)
    second = torch.optim.SGD([lagrangian.get_parameter("b")], lr=0.5, maximize=True)
    lagrangian.ascend(first, {"a": torch.tensor(1.0)})
    lagrangian.ascend(second, {"b": torch.tensor(1.0)})
    assert lagrangian.multipliers["a"].item() == 1.0
    assert lagrangian.multipliers["b"].item() == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, maximize=True),
        lambda p: torch.optim.Adam(p, 0.1, maximize=True),
        lambda p: torch.optim.RMSprop(p, 0.1, maximize=True),
        lambda p: torch.optim.Adagrad(p, 0.1, maximize=True),
        lambda p: nupi.UnifiedMomentum(p, 0.1, -0.3),
        lambda p: nupi.PID(p, 0.1, 1.0, 0.5),
        lambda p: nupi.NuPI(p, 0.1, 1.0, form="positional"),
    ],
    ids=["SGD", "Adam", "RMSprop", "Adagrad", "UnifiedMomentum", "PID", "positional"],
)
def test_any_maximizing_optimizer_serves_and_inequalities_stay_feasible(make):
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality(4), "h": nupi.Equality(4)})
    dual = make(lagrangian.parameters())
    for t in range(6):
        v = torch.tensor([1.0, -1.0, (-1.0) ** t, 0.3])
        lagrangian.ascend(dual, {"g": v, "h": v})
        assert (lagrangian.multipliers["g"] >= 0).all()
    assert lagrangian.multipliers["g"][1] == 0
    assert lagrangian.multipliers["h"][1] < 0


def test_restart_sets_a_multiplier_to_zero_only_where_its_constraint_is_strictly_satisfied():
    for make in (lambda p: nupi.NuPI(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, maximize=True)):
        lagrangian = nupi.Lagrangian({"g": nupi.Inequality(3, init=5.0, restart=True)})
        lagrangian.ascend(make(lagrangian.parameters()), {"g": torch.tensor([1.0, 0.0, -0.01])})
        assert lagrangian.multipliers["g"].tolist() == pytest.approx([5.1, 5.0, 0.0])


def test_restart_reaches_the_positional_integral_and_indexed_rows():
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality(3, init=5.0, restart=True)})
    dual = nupi.NuPI(lagrangian.parameters(), 0.1, 0.01, form="positional")
    lagrangian.ascend(dual, {"g": nupi.Indexed(torch.tensor([-1.0, 1.0]), torch.tensor([2, 0]))})
    assert lagrangian.multipliers["g"].tolist() == pytest.approx([5.1, 5.0, 0.0])
    lagrangian.ascend(dual, {"g": torch.tensor([0.0, 0.0, 1.0])})
    assert lagrangian.multipliers["g"][2].item() == pytest.approx(0.11)  # from 0, not from 5


def test_indexed_equals_dense_with_the_same_errors_and_touches_nothing_else():
    dense, indexed = (nupi.Lagrangian({"g": nupi.Inequality((5, 2), init=1.0)}) for _ in range(2))
    duals = [nupi.NuPI(lag.parameters(), 0.3, 1.0) for lag in (dense, indexed)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, generator=generator, requires_grad=True)
    for _ in range(4):
        violation = torch.randn(5, 2, generator=generator) + x
        rows = torch.randperm(5, generator=generator)
        dense.ascend(duals[0], {"g": violation})
        indexed.ascend(duals[1], {"g": nupi.Indexed(violation[rows], rows)})
        assert torch.equal(dense.multipliers["g"], indexed.multipliers["g"])
        left = dense(x.sum(), {"g": violation})
        right = indexed(x.sum(), {"g": nupi.Indexed(violation[rows], rows)})
        torch.testing.assert_close(left, right)
    before = indexed.multipliers["g"].clone()
    indexed.ascend(duals[1], {"g": nupi.Indexed(torch.ones(1, 2), torch.tensor([3]))})
    changed = (indexed.multipliers["g"] != before).any(dim=1)
    assert changed.tolist() == [False, False, False, True, False]


def test_an_index_that_comes_twice_counts_twice_in_value_and_step():
    lagrangian = nupi.Lagrangian({"h": nupi.Equality(3, init=2.0)})
    violations = {"h": nupi.Indexed(torch.tensor([1.0, 0.5]), torch.tensor([1, 1]))}
    assert lagrangian(torch.zeros(()), violations).item() == 3.0
    lagrangian.ascend(nupi.NuPI(lagrangian.parameters(), ki=1.0), violations)
    assert lagrangian.multipliers["h"].tolist() == [2.0, 3.5, 2.0]


def test_an_empty_batch_of_indices_changes_nothing():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    empty = nupi.Indexed(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    lagrangian.ascend(dual, {"fair": empty})
    assert lagrangian(torch.ones(()), {"fair": empty}).item() == 1.0
    assert_unchanged(before, lagrangian, dual)


def test_the_order_of_two_lines_is_the_update_scheme():
    """Alternating, simultaneous and primal-first on min x^2/2 s.t. x = 1, against the algebra of each."""

    def one_step(order):
        x = torch.tensor(3.0, requires_grad=True)
        lagrangian = nupi.Lagrangian({"h": nupi.Equality()})
        dual, primal = nupi.NuPI(lagrangian.parameters(), ki=0.5), torch.optim.SGD([x], lr=0.1)
        violations = {"h": x - 1}
        for line in order:
            if line == "ascend":
                lagrangian.ascend(dual, violations)
            elif line == "backward":
                lagrangian(x**2 / 2, violations).backward()
            else:
                primal.step()
                violations = {"h": x - 1}
        return x.item(), lagrangian.multipliers["h"].item()

    assert one_step(["ascend", "backward", "step"]) == pytest.approx((3 - 0.1 * (3 + 1), 1.0))
    assert one_step(["backward", "ascend", "step"]) == pytest.approx((3 - 0.1 * 3, 1.0))
    assert one_step(["backward", "step", "ascend"]) == pytest.approx((2.7, 0.5 * 1.7))


def test_multipliers_are_never_narrowed():
    lagrangian, _ = problem(wide=nupi.Equality(2, init=torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)))
    before = lagrangian.multipliers
    model = nn.ModuleDict({"net": nn.Linear(2, 2), "lagrangian": lagrangian})
    for narrow in (lambda: model.to(torch.bfloat16), model.half, lagrangian.bfloat16):
        narrow()
        assert model["net"].weight.dtype.itemsize == 2
        assert {n: t.dtype for n, t in lagrangian.multipliers.items()} == {
            n: t.dtype for n, t in before.items()
        }
        assert all(torch.equal(before[name], tensor) for name, tensor in lagrangian.multipliers.items())
    lagrangian.double()
    assert lagrangian.multipliers["fair"].dtype == torch.float64


def test_autocast_and_bfloat16_violations_leave_the_multipliers_float32():
    lagrangian, dual = problem()
    model = nn.Linear(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(2, 3))
        assert out.dtype == torch.bfloat16
        violations = {"fair": out.mean(0), "small": out.sum()}
        lagrangian.ascend(dual, violations)
        value = lagrangian(out.float().pow(2).mean(), violations)
    assert value.dtype == torch.float32
    value.backward()
    assert lagrangian.multipliers["fair"].dtype == torch.float32
    assert all(s.dtype == torch.float32 for state in dual.state.values() for s in state.values())
    expected = 0.1 * violations["fair"].float()
    torch.testing.assert_close(lagrangian.multipliers["fair"], expected.detach())


def test_copies_and_pickles_go_on_alone():
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    twins = [copy.deepcopy((lagrangian, dual)), pickle.loads(pickle.dumps((lagrangian, dual)))]
    some_steps(lagrangian, dual, seed=5)
    for twin, its_dual in twins:
        assert not torch.equal(twin.multipliers["fair"], lagrangian.multipliers["fair"])
        some_steps(twin, its_dual, seed=5)
        assert torch.equal(twin.multipliers["fair"], lagrangian.multipliers["fair"])
        assert torch.equal(twin.multipliers["small"], lagrangian.multipliers["small"])


@pytest.mark.parametrize("stop", [0, 2])
def test_a_checkpoint_goes_on_bit_for_bit(stop):
    lagrangian, dual = problem()
    some_steps(lagrangian, dual, stop)
    file = io.BytesIO()
    torch.save({"lagrangian": lagrangian.state_dict(), "dual": dual.state_dict()}, file)
    some_steps(lagrangian, dual, seed=7)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, its_dual = problem()
    again.load_state_dict(saved["lagrangian"])
    its_dual.load_state_dict(saved["dual"])
    some_steps(again, its_dual, seed=7)
    assert_unchanged(snapshot(lagrangian, dual), again, its_dual)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"fair": nupi.Equality(4), "small": nupi.Inequality()},
            r"'fair' has shape \(4,\) in it and \(3,\) here",
        ),
        (
            {"fair": nupi.Equality(3)},
            "it has multipliers for 'fair', but the constraints here are 'fair', 'small'",
        ),
        ({"fair": nupi.Equality(3), "tiny": nupi.Inequality()}, "it has multipliers for 'fair', 'tiny'"),
        ({"fair": nupi.Equality(3), "small": nupi.Equality(init=1.0)}, "'small' is an equality in it and an"),
    ],
)
def test_a_checkpoint_of_another_problem_is_refused_whole(other, message):
    theirs = nupi.Lagrangian(other)
    with torch.no_grad():
        theirs.multipliers["fair"].fill_(9.0)
    lagrangian, dual = problem()
    some_steps(lagrangian, dual)
    before = snapshot(lagrangian, dual)
    with pytest.raises(RuntimeError, match=message + ".*nothing was loaded"):
        lagrangian.load_state_dict(theirs.state_dict())
    assert_unchanged(before, lagrangian, dual)


def test_a_checkpoint_reaches_a_lagrangian_inside_a_larger_module():
    def larger():
        return nn.ModuleDict(
            {"net": nn.Linear(1, 1), "constraints": nupi.Lagrangian({"a.b": nupi.Equality(2)})}
        )

    left, right = larger(), larger()
    with torch.no_grad():
        left["constraints"].multipliers["a.b"].fill_(4.0)
    right.load_state_dict(left.state_dict())
    assert right["constraints"].multipliers["a.b"].tolist() == [4.0, 4.0]


def test_repr_reads_well():
    lagrangian = nupi.Lagrangian({"b": nupi.Equality((2, 3)), "a": nupi.Inequality(init=0.25)})
    assert repr(nupi.Inequality(2, restart=True)) == "Inequality(2, restart=True)"
    assert "meta" in repr(nupi.Lagrangian({"c": nupi.Equality(3)}).to("meta"))
    assert repr(lagrangian) == "Lagrangian(\n  a: Inequality(1) at 0.25\n  b: Equality((2, 3)) at 0 … 0\n)"
    assert re.fullmatch(
        r"Indexed\(9 values at \[0, 1, .*7, …\]\)", repr(nupi.Indexed(torch.ones(9), torch.arange(9)))
    )


def test_the_whole_step_compiles_to_one_graph():
    def make():
        torch.manual_seed(0)
        lagrangian, dual = problem()
        return nn.Linear(3, 3), lagrangian, dual

    def step(model, lagrangian, dual, data):
        out = model(data)
        violations = {"fair": out.mean(0), "small": out.sum()}
        lagrangian.ascend(dual, violations)
        return lagrangian(out.pow(2).mean(), violations)

    torch._dynamo.reset()
    plain, fast = make(), make()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for _ in range(3):
        data = torch.randn(4, 3)
        torch.testing.assert_close(step(*plain, data), compiled(*fast, data))
    for name, multiplier in plain[1].multipliers.items():
        torch.testing.assert_close(multiplier, fast[1].multipliers[name])


def test_narrow_sums_do_not_round_their_counts():
    lagrangian = nupi.Lagrangian({"rate": nupi.Equality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    for dtype in (torch.bfloat16, torch.float16):
        seen = nupi.Averaged(torch.tensor([257.0, 256.0]).to(dtype), torch.tensor([257, 70_000]))
        before = lagrangian.multipliers["rate"].clone()
        lagrangian.ascend(dual, {"rate": seen})
        expected = seen.sums.float() / torch.tensor([257.0, 70_000.0])
        torch.testing.assert_close(lagrangian.multipliers["rate"] - before, expected, rtol=1e-5, atol=1e-7)
