"""A training step with the Lagrangian inside is one graph, and so is `ascend`; each does what eager code does."""

from functools import partial

import pytest
import torch
from torch import nn

import nupi


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    lagrangian = nupi.Lagrangian({"fair": nupi.Equality(3), "small": nupi.Inequality()})
    return model, lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.2, init="zero")


def step(model, lagrangian, dual, x):
    out = model(x)
    violations = {"fair": out.mean(0), "small": out.square().mean() - 0.01}
    lagrangian.ascend(dual, violations)
    return lagrangian(out.square().sum(1).mean(), violations)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_whole_training_step_is_one_graph_and_trains_as_eager_does(backend):
    torch._dynamo.reset()
    plain, fast = problem(), problem()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    primals = [torch.optim.SGD(parts[0].parameters(), 0.05) for parts in (plain, fast)]
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(16, 4, generator=draw)
        for parts, primal, run in zip((plain, fast), primals, (step, compiled), strict=True):
            primal.zero_grad()
            run(*parts, x).backward()
            primal.step()
    for left, right in zip(plain[0].parameters(), fast[0].parameters(), strict=True):
        torch.testing.assert_close(left, right)
    for name, multiplier in plain[1].multipliers.items():
        assert multiplier.any()
        torch.testing.assert_close(multiplier, fast[1].multipliers[name])


def test_nothing_breaks_the_graph():
    torch._dynamo.reset()
    parts = problem()
    parts[1].ascend(
        parts[2], {"fair": torch.zeros(3), "small": torch.zeros(())}
    )  # state is made once, by eager code
    report = torch._dynamo.explain(step)(*parts, torch.randn(16, 4))
    assert report.graph_break_count == 0, report.break_reasons
    assert report.graph_count == 1


@pytest.mark.parametrize("reduce", [None, "mean", "sum"])
def test_the_call_and_ascend_compile_with_averages_and_reduce(reduce):
    torch._dynamo.reset()

    def build():
        lagrangian = nupi.Lagrangian({"rate": nupi.Inequality(2), "norm": nupi.Equality()}, reduce=reduce)
        return lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.5)

    (plain, its_dual), (fast, fast_dual) = build(), build()
    ascend = torch.compile(fast.ascend, fullgraph=True, backend="aot_eager")
    call = torch.compile(fast, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 2.0, -0.5):
        dense = {"rate": scale * torch.tensor([1.0, -1.0]), "norm": torch.tensor(scale)}
        plain.ascend(its_dual, dense)
        ascend(fast_dual, dense)
        averages = {"rate": nupi.Averaged(torch.tensor([3.0, torch.nan]), torch.tensor([2, 0]))}
        torch.testing.assert_close(call(torch.ones(()), averages), plain(torch.ones(()), averages))
    for name, multiplier in plain.multipliers.items():
        torch.testing.assert_close(multiplier, fast.multipliers[name])


def test_the_curvature_of_a_compiled_model_is_measured_on_what_evaluate_gives():
    """AOTAutograd has no second derivatives, which the curvature takes; the plain model has the same weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    compiled = torch.compile(model, backend="aot_eager")
    rows = torch.randn(8, 3)

    def evaluate(network=model):
        out = network(rows)
        return out.square().mean(), {"c": out.mean() - 1}

    def train(**options):
        primal = torch.optim.SGD(model.parameters(), lr=0.1)
        lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=10, primal=primal, **options)
        for step in range(12):
            loss, violations = evaluate(compiled)
            if step % 2 == 0:
                lagrangian.ascend(dual, violations)
            lagrangian(loss, violations).backward()
            primal.step()
            primal.zero_grad()
        return dual.gains()["c"]

    with pytest.raises(RuntimeError, match="a compiled model does not have; give SelfTuned an `evaluate`"):
        train()
    assert train(evaluate=evaluate)["curvature"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own look
def test_a_compiled_function_breaks_for_a_dual_optimizer_that_measures(monkeypatch):
    """Or it would never be shown a loss, and no multiplier would move."""
    monkeypatch.setattr("torch._functorch.config.donated_buffer", False)

    def train(compiled):
        torch.manual_seed(0)
        rows = torch.randn(64, 2)
        model = torch.nn.Linear(2, 1)
        primal = torch.optim.Adam(model.parameters(), lr=0.05)
        lagrangian = nupi.Lagrangian({"mean": nupi.Inequality()})
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=20, primal=primal)

        def value():
            out = model(rows).squeeze(1)
            violations = {"mean": out.mean() + 1}
            lagrangian.ascend(dual, violations)
            return lagrangian((out - rows[:, 0]).square().mean(), violations)

        step = compiled(value)
        for _ in range(40):
            step().backward()
            primal.step()
            primal.zero_grad()
        return lagrangian.multipliers["mean"].item()

    expected = train(lambda value: value)
    assert expected > 0.1
    assert train(partial(torch.compile, backend="aot_eager")) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        train(partial(torch.compile, backend="aot_eager", fullgraph=True))
