"""Extragradient and optimistic steps: closed forms on a bilinear game, Cooper, optax, and errors on the way."""

import io
from copy import deepcopy

import cooper
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi

DOUBLE = torch.float64


def game(lr, *, make_primal=torch.optim.SGD, make_dual=None):
    """min 0 subject to x = 0: the Lagrangian is theta x."""
    lagrangian = nupi.Lagrangian({"h": nupi.Equality(init=torch.tensor([0.5], dtype=DOUBLE))})
    dual = (make_dual or (lambda p: nupi.NuPI(p, ki=lr)))(lagrangian.parameters())
    x = torch.ones(1, dtype=DOUBLE, requires_grad=True)
    return lagrangian, dual, x, make_primal([x], lr=lr)


def value(lagrangian, x):
    violations = {"h": x.clone()}
    return lagrangian(0 * x.sum(), violations), violations


def size(lagrangian, x):
    return (x.square() + lagrangian.multipliers["h"].square()).item()


def simultaneous(lagrangian, dual, x, primal):
    loss, violations = value(lagrangian, x)
    loss.backward()
    lagrangian.ascend(dual, violations)
    primal.step()
    primal.zero_grad()


def extragradient(lagrangian, dual, x, primal, **options):
    loss, violations = value(lagrangian, x)
    loss.backward()
    with nupi.extrapolated(lagrangian, dual, primal, violations, **options):
        loss, violations = value(lagrangian, x)
        loss.backward()
    lagrangian.ascend(dual, violations)
    primal.step()
    primal.zero_grad()


@settings(max_examples=20, deadline=None)
@given(lr=st.floats(0.05, 0.9))
def test_the_rates_on_a_bilinear_game_are_the_known_ones(lr):
    """A step multiplies x^2 + theta^2 by 1 + lr^2 if simultaneous, by 1 - lr^2 + lr^4 if extragradient."""
    steps = 20
    for step, factor in ((simultaneous, 1 + lr**2), (extragradient, 1 - lr**2 + lr**4)):
        parts = game(lr)
        start = size(parts[0], parts[2])
        for _ in range(steps):
            step(*parts)
        assert size(parts[0], parts[2]) == pytest.approx(start * factor**steps, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(lr=st.floats(0.05, 0.45))
def test_optimistic_steps_follow_their_recursion_and_converge(lr):
    """z_{t+1} = z_t + lr i (2 z_t - z_{t-1}) with z = x + i theta; for lr < 1/sqrt 3 its roots lie in the circle."""
    lagrangian, dual, x, primal = game(lr, make_dual=lambda p: nupi.NuPI(p, ki=lr, kp=lr))
    nupi.optimistic(primal)
    z = before = complex(1.0, 0.5)
    for _ in range(60):
        simultaneous(lagrangian, dual, x, primal)
        z, before = z + lr * 1j * (2 * z - before), z
        found = complex(x.item(), lagrangian.multipliers["h"].item())
        assert found == pytest.approx(z, rel=1e-9, abs=1e-12)
    radius = max(abs(np.roots([1, -1 - 2j * lr, 1j * lr])))
    assert radius < 1


def test_optimistic_steps_are_optax_ones():
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    jax.config.update("jax_enable_x64", True)
    gradients = np.random.default_rng(0).normal(size=(8, 3))
    theirs = optax.optimistic_gradient_descent(0.1)
    point = jax.numpy.zeros(3)
    state = theirs.init(point)
    x = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    nupi.optimistic(primal)
    for gradient in gradients:
        updates, state = theirs.update(jax.numpy.asarray(gradient), state, point)
        point = optax.apply_updates(point, updates)
        x.grad = torch.from_numpy(gradient).clone()
        primal.step()
        np.testing.assert_allclose(x.detach().numpy(), np.asarray(point), rtol=1e-12, atol=1e-12)


def norm_problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    rows = torch.randn(20, 3, dtype=DOUBLE)

    def evaluate():
        out = model(rows).squeeze(1)
        return (out - rows[:, 0]).square().mean(), {"g": 0.5 - out.square().mean()}

    return model, evaluate


class CoopersProblem(cooper.ConstrainedMinimizationProblem):
    def __init__(self, evaluate):
        super().__init__()
        self.evaluate = evaluate
        self.constraint = cooper.Constraint(
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=1, dtype=DOUBLE),
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
        )

    def compute_cmp_state(self):
        loss, violations = self.evaluate()
        state = cooper.ConstraintState(violation=violations["g"].reshape(1))
        return cooper.CMPState(loss, {self.constraint: state})


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "keep_state"),
    [
        (torch.optim.SGD, cooper.optim.ExtraSGD, {"lr": 0.02}, False),
        (torch.optim.Adam, cooper.optim.ExtraAdam, {"lr": 0.02, "eps": 1e-30}, True),
    ],
    ids=["sgd", "adam"],
)
def test_a_network_takes_coopers_extragradient_steps(ours, theirs, options, keep_state):
    model, evaluate = norm_problem()
    other_model = deepcopy(model)
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality()}).double()
    dual = torch.optim.SGD(lagrangian.parameters(), lr=0.5, maximize=True)
    primal = ours(model.parameters(), **options)
    for _ in range(15):
        loss, violations = evaluate()
        lagrangian(loss, violations).backward()
        with nupi.extrapolated(lagrangian, dual, primal, violations, keep_state=keep_state):
            loss, violations = evaluate()
            lagrangian(loss, violations).backward()
        lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()

    here = dict(zip(model.parameters(), other_model.parameters(), strict=True))
    problem = CoopersProblem(evaluate)
    with torch.no_grad():  # evaluate closes over `model`: start it again from the same point
        ended = [param.detach().clone() for param in here]
        for param, start in here.items():
            param.copy_(start)
    loop = cooper.optim.ExtrapolationConstrainedOptimizer(
        problem,
        primal_optimizers=theirs(model.parameters(), **options),
        dual_optimizers=cooper.optim.ExtraSGD(problem.dual_parameters(), lr=0.5, maximize=True),
    )
    for _ in range(15):
        loop.roll()
    for end, param in zip(ended, model.parameters(), strict=True):
        torch.testing.assert_close(param.detach(), end, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        problem.constraint.multiplier.weight.detach(), lagrangian.multipliers["g"], rtol=1e-9, atol=1e-12
    )
    assert lagrangian.multipliers["g"].item() > 0.1


def snapshot(lagrangian, dual, primal, model):
    return deepcopy(
        (
            lagrangian.state_dict(),
            dual.state_dict(),
            primal.state_dict(),
            [(p.detach(), None if p.grad is None else p.grad) for p in model.parameters()],
        )
    )


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


class RaisingStep(torch.optim.Adam):
    fails = False
    early = False

    def step(self, closure=None):
        if not (self.fails and self.early):
            super().step(closure)
        if self.fails:
            raise RuntimeError("in the step")


@pytest.mark.parametrize("keep_state", [False, True])
@pytest.mark.parametrize("where", ["violations", "primal step", "block"])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_whatever_raises_all_is_as_it_was(where, steps_before, keep_state):
    model, evaluate = norm_problem()
    lagrangian = nupi.Lagrangian({"g": nupi.Inequality()}).double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=1.0)
    primal = RaisingStep(model.parameters(), lr=0.02)

    def step(*, fail):
        loss, violations = evaluate()
        primal.zero_grad()
        lagrangian(loss, violations).backward()
        if fail and where == "violations":
            violations = {"g": torch.tensor(float("nan"), dtype=DOUBLE)}
        primal.fails = fail and where == "primal step"
        before = snapshot(lagrangian, dual, primal, model)
        try:
            with nupi.extrapolated(lagrangian, dual, primal, violations, keep_state=keep_state):
                if fail:
                    torch.zeros(2) @ torch.zeros(3)
                loss, violations = evaluate()
                lagrangian(loss, violations).backward()
        except (RuntimeError, nupi.NonFiniteViolationError):
            assert_same(snapshot(lagrangian, dual, primal, model), before)
            return
        assert not fail
        lagrangian.ascend(dual, violations)
        primal.step()

    for _ in range(steps_before):
        step(fail=False)
    step(fail=True)


def test_listeners_hear_of_steps_and_not_of_looks_ahead():
    parts = game(0.3)
    heard = []
    parts[0].listen(heard.append)
    for _ in range(4):
        extragradient(*parts)
    assert len(heard) == 4


def test_several_optimizers_of_a_model_look_ahead_together():
    model, evaluate = norm_problem()
    other, evaluate_other = norm_problem()
    ends = []
    for network, look, make in (
        (model, evaluate, lambda p: [torch.optim.SGD(p[:2], lr=0.1), torch.optim.SGD(p[2:], lr=0.1)]),
        (other, evaluate_other, lambda p: [torch.optim.SGD(p, lr=0.1)]),
    ):
        lagrangian = nupi.Lagrangian({"g": nupi.Inequality()}).double()
        dual = nupi.NuPI(lagrangian.parameters(), ki=0.5)
        primals = make(list(network.parameters()))
        for _ in range(5):
            loss, violations = look()
            lagrangian(loss, violations).backward()
            with nupi.extrapolated(lagrangian, dual, primals, violations):
                loss, violations = look()
                lagrangian(loss, violations).backward()
            lagrangian.ascend(dual, violations)
            for primal in primals:
                primal.step()
                primal.zero_grad()
        ends.append([param.detach() for param in network.parameters()])
    assert_same(*ends)


def _ranks_look_ahead(world):
    """Each rank sees a violation of its own; the mean of them is what one process sees."""
    lagrangian = nupi.Lagrangian({"h": nupi.Equality()}, reduce="mean" if world > 1 else None).double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.3, kp=0.2)
    x = torch.ones(1, dtype=DOUBLE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.3)
    shift = {"h": 0.0} if world == 1 else {"h": 0.5 - torch.distributed.get_rank()}
    for _ in range(6):
        violations = {"h": x + shift["h"]}
        lagrangian(0 * x.sum(), violations).backward()
        with nupi.extrapolated(lagrangian, dual, primal, violations):
            violations = {"h": x + shift["h"]}
            lagrangian(0 * x.sum(), violations).backward()
        lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()
    return x.item(), lagrangian.multipliers["h"].item()


def test_ranks_look_ahead_as_one_process_does(ranks):
    alone = _ranks_look_ahead(1)
    for found in ranks.run(_ranks_look_ahead, 2, world=2):
        assert found == pytest.approx(alone, rel=1e-12)


# --- optimistic ---


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimistic_optimizer_resumes_from_its_checkpoint(make):
    gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))

    def taken(which, state=None):
        x = torch.zeros(3, requires_grad=True)
        primal = make([x], lr=0.1)
        if state is not None:
            with torch.no_grad():
                x.copy_(state["x"])
            primal.load_state_dict(state["primal"])
        nupi.optimistic(primal)
        for number in which:
            x.grad = gradients[number].clone()
            primal.step()
            assert torch.equal(x.grad, gradients[number])  # the user's own again
        file = io.BytesIO()
        torch.save({"x": x.detach(), "primal": primal.state_dict()}, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    whole, half = taken(range(6)), taken(range(3))
    assert torch.equal(whole["x"], taken(range(3, 6), half)["x"])
    plain = torch.zeros(3, requires_grad=True)
    optimizer = make([plain], lr=0.1)
    for number in range(6):
        before = gradients[max(0, number - 1)]
        plain.grad = 2 * gradients[number] - before
        optimizer.step()
    torch.testing.assert_close(whole["x"], plain.detach())


def test_an_optimistic_step_that_raises_leaves_the_record_as_it_was():
    x = torch.zeros(2, requires_grad=True)
    primal = RaisingStep([x], lr=0.1)
    handle = nupi.optimistic(primal)
    for gradient in (1.0, 2.0):
        x.grad = torch.full((2,), gradient)
        primal.step()
    before = deepcopy(primal.state[x]["previous_gradient"])
    primal.fails = primal.early = True
    x.grad = torch.full((2,), 7.0)
    with pytest.raises(RuntimeError, match="in the step"):
        primal.step()
    assert torch.equal(primal.state[x]["previous_gradient"], before)
    primal.fails = False
    primal.step()  # once more, with the same gradient
    assert primal.state[x]["previous_gradient"].tolist() == [7.0, 7.0]
    assert x.grad.tolist() == [7.0, 7.0]
    handle.remove()
    x.grad = torch.full((2,), 9.0)
    primal.step()
    assert primal.state[x]["previous_gradient"].tolist() == [7.0, 7.0]


def test_torchs_own_dual_may_be_optimistic_too_and_ascend_undoes_it():
    lagrangian = nupi.Lagrangian({"h": nupi.Equality()})
    dual = torch.optim.SGD(lagrangian.parameters(), lr=0.1, maximize=True)
    nupi.optimistic(dual)
    for violation in (1.0, 3.0):
        lagrangian.ascend(dual, {"h": torch.tensor(violation)})
    assert lagrangian.multipliers["h"].item() == pytest.approx(0.1 + 0.1 * (6 - 1))
    before = deepcopy((lagrangian.state_dict(), dual.state_dict()))
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"h": torch.tensor(float("inf"))})
    assert_same((lagrangian.state_dict(), dual.state_dict()), before)


def test_what_optimism_refuses():
    lagrangian = nupi.Lagrangian({"h": nupi.Equality()})
    with pytest.raises(TypeError, match="NuPI\\(params, ki=lr, kp=lr\\)"):
        nupi.optimistic(nupi.NuPI(lagrangian.parameters(), ki=0.1))
    with pytest.raises(TypeError, match="must be a torch optimizer"):
        nupi.optimistic(lagrangian)
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    nupi.optimistic(primal)
    with pytest.raises(TypeError, match="closure"):
        primal.step(lambda: 0.0)
    x.grad = torch.ones(2).to_sparse()
    with pytest.raises(TypeError, match="sparse"):
        primal.step()


@pytest.mark.parametrize("where", ["before", "in"])
def test_a_forgotten_backward_is_an_error_and_changes_nothing(where):
    lagrangian, dual, x, primal = game(0.1)
    before = x.detach().clone()
    if where == "in":
        value(lagrangian, x)[0].backward()

    def look_ahead():
        with nupi.extrapolated(lagrangian, dual, primal, {"h": x}):
            pass

    with pytest.raises(
        RuntimeError, match=rf"no parameter of primal has a gradient; call .* {where} the block"
    ):
        look_ahead()
    assert torch.equal(x, before)
    assert lagrangian.multipliers["h"] == 0.5
