"""A compiled `ascend` on violations of some rows does what eager code does; what cannot be one graph breaks it."""

import pytest
import torch

import nupi

DUALS = {
    "integral": lambda p: nupi.NuPI(p, 0.1),
    "velocity": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.3, init="zero", form="velocity"),
    "conditional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.3),
    "positional": lambda p: nupi.NuPI(p, 0.1, 1.0, 0.3, init="error", form="positional"),
    "tensor gains": lambda p: nupi.PID(p, torch.tensor(0.1), 1.0, 0.2),
}


def sgd(params):
    return torch.optim.SGD(params, 0.1, maximize=True)


def problem(make):
    lagrangian = nupi.Lagrangian(
        {
            "rows": nupi.Inequality(6, restart=True),
            "table": nupi.Inequality((5, 2)),
            "norm": nupi.Equality(),
            "rate": nupi.Inequality(3),
        }
    )
    return lagrangian, make(lagrangian.parameters())


def seen(step, *names):
    """Rows that repeat, rows that do not, and rows that come for the first time late."""
    draw = torch.Generator().manual_seed(step)
    last = min(step + 1, 5)
    counts = torch.randint(3, (3,), generator=draw)
    all_of_them = {
        "rows": nupi.Indexed(
            torch.randn(4, generator=draw), torch.randint(last + 1, (4,), generator=draw).int()
        ),
        "table": nupi.Indexed(torch.randn(3, 2, generator=draw), torch.randperm(5, generator=draw)[:3]),
        "norm": torch.randn((), generator=draw),
        "rate": nupi.Averaged(torch.randn(3, generator=draw), counts),
    }
    return {name: all_of_them[name] for name in names}


def assert_same(plain, fast, names):
    (lagrangian, dual), (compiled, its_dual) = plain, fast
    for name in names:
        multiplier, other = lagrangian.get_parameter(name), compiled.get_parameter(name)
        assert multiplier.any()
        torch.testing.assert_close(other, multiplier)
        state, others = dual.state.get(multiplier, {}), its_dual.state.get(other, {})
        for slot in state.keys() - {"started"}:
            torch.testing.assert_close(others[slot], state[slot])
        # A row is seen or it is not; where all are, the mask may be gone.
        every = torch.ones(multiplier.shape[:1], dtype=torch.bool)
        assert torch.equal(others.get("started", every), state.get("started", every))


@pytest.mark.parametrize(
    "make",
    # The velocity form is a part of the conditional one.
    [
        pytest.param(make, id=name, marks=[pytest.mark.nightly] if name == "velocity" else [])
        for name, make in DUALS.items()
    ],
)
def test_compiled_is_eager_in_one_graph(make):
    torch._dynamo.reset()
    plain, fast = problem(make), problem(make)
    names = ("rows", "table", "norm", "rate")
    ascend = torch.compile(fast[0].ascend, fullgraph=True, backend="aot_eager")
    for step in range(6):
        plain[0].ascend(plain[1], seen(step, *names))
        ascend(fast[1], seen(step, *names))
        for value in (value for state in fast[1].state.values() for value in state.values()):
            # A stride that is another one after the next step would have it compiled again.
            assert value.stride() == torch.empty(value.shape).stride()
    assert_same(plain, fast, names)


def test_inductor_makes_the_same_of_it():
    torch._dynamo.reset()
    plain, fast = problem(DUALS["velocity"]), problem(DUALS["velocity"])
    ascend = torch.compile(fast[0].ascend, fullgraph=True)
    for step in range(4):
        plain[0].ascend(plain[1], seen(step, "rows", "norm"))
        ascend(fast[1], seen(step, "rows", "norm"))
    assert_same(plain, fast, ("rows", "norm"))


@pytest.mark.parametrize("bads", [("nan", "index"), ("first",)], ids=["later", "first"])
def test_what_is_wrong_is_undone_and_reported(bads):
    torch._dynamo.reset()
    lagrangian, dual = problem(DUALS["velocity"])
    ascend = torch.compile(lagrangian.ascend, fullgraph=True, backend="aot_eager")
    good = [] if bads == ("first",) else [seen(step, "rows", "norm") for step in range(2)]
    plain = problem(DUALS["velocity"])
    for violations in good:
        ascend(dual, violations)
        plain[0].ascend(plain[1], violations)
    theta = lagrangian.get_parameter("rows")
    for step, bad in enumerate(bads, start=5):
        before = [theta.clone(), *(value.clone() for value in dual.state.get(theta, {}).values())]
        index, value = (6, 1.0) if bad == "index" else (2, torch.nan)
        wrong = nupi.Indexed(torch.tensor([value, 1.0, 1.0, 1.0]), torch.tensor([index, 1, 1, 0]).int())
        ascend(dual, {"rows": wrong, "norm": torch.tensor(1.0)})
        after = [theta, *dual.state[theta].values()]
        if good:
            assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
        else:
            assert not any(tensor.any() for tensor in after), "nothing has been seen, and nothing moved"
        with pytest.raises(nupi.NonFiniteViolationError, match="'rows'"):
            lagrangian.check()
        plain[0].ascend(plain[1], seen(step, "rows", "norm"))
        ascend(dual, seen(step, "rows", "norm"))
        assert_same(plain, (lagrangian, dual), ("rows", "norm"))


@pytest.mark.parametrize(
    "names",
    [("rows", "norm"), ("rate", "norm")],
)
def test_what_cannot_be_one_graph_is_left_to_eager_code(names):
    torch._dynamo.reset()
    plain, fast = problem(sgd), problem(sgd)
    ascend = torch.compile(fast[0].ascend, backend="aot_eager")
    for step in range(5):
        plain[0].ascend(plain[1], seen(step, *names))
        ascend(fast[1], seen(step, *names))
    assert_same(plain, fast, names)


def test_a_count_that_is_none_is_undone_and_reported():
    torch._dynamo.reset()
    lagrangian, dual = problem(DUALS["velocity"])
    ascend = torch.compile(lagrangian.ascend, fullgraph=True, backend="aot_eager")
    unseen = torch.tensor(
        [torch.nan, 1.0, 1.0]
    )  # whatever the sum of a row that was not seen holds does no harm
    ascend(dual, {"rate": nupi.Averaged(unseen, torch.tensor([0.0, 1.0, 2.0]))})
    assert lagrangian.multipliers["rate"].tolist() == pytest.approx([0.0, 0.1, 0.05])
    for count in (-1.0, torch.inf):
        ascend(dual, {"rate": nupi.Averaged(torch.ones(3), torch.tensor([1.0, count, 2.0]))})
        assert lagrangian.multipliers["rate"].tolist() == pytest.approx([0.0, 0.1, 0.05])
        with pytest.raises(nupi.NonFiniteViolationError, match="'rate'"):
            lagrangian.check()
