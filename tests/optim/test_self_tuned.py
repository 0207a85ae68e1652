"""SelfTuned: what it measures, against closed forms; what it reaches, against exact solutions."""

import copy
import io
import math
from functools import partial

import pytest
import torch
from scipy.optimize import brentq

import nupi
from nupi.integrations.duals import make_dual
from nupi.optim import self_tuning
from nupi.plant import measure, scalings

WIDE = torch.float64


def quadratic(unit=1.0, kind=nupi.Equality, optimizer=None):
    """min |x|^2 / 2 - x_1 - x_2 subject to two rows of A x = b (or <= b), with an optimizer of x."""
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], dtype=WIDE)
    x = torch.zeros(3, dtype=WIDE, requires_grad=True)
    primal = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.05)))([x])
    lagrangian = nupi.Lagrangian({"rows": kind(2, init=torch.zeros(2, dtype=WIDE))})

    def evaluate():
        return x.square().sum() / 2 - x[:2].sum(), {
            "rows": unit * (rows @ x - torch.tensor([1.0, -1.0], dtype=WIDE))
        }

    return x, primal, lagrangian, evaluate


def train(primal, lagrangian, dual, evaluate, steps):
    for _ in range(steps):
        loss, violations = evaluate()
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()


def test_the_response_under_sgd_is_the_row_sum_of_the_gain_matrix():
    x, primal, lagrangian, evaluate = quadratic(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5))
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, evaluate, 1)
    found = dual.gains()["rows"]
    # M = 0.1 A A^T = 0.1 [[5, -2], [-2, 10]]; each row in its own unit: M_ii (1 + 2 / sqrt(50)).
    overlap = 1 + 2 / math.sqrt(50)
    torch.testing.assert_close(found["response"], torch.tensor([0.5, 1.0], dtype=WIDE) * overlap)
    assert found["measured_at"] == 1
    assert (found["ki"] > 0).all()  # the gains that follow serve the very next step
    torch.testing.assert_close(found["nu"], 1 - dual.state[lagrangian.get_parameter("rows")]["weight"])
    # The loss pulls with (-1, -1, 0) at x = 0: its length over that of each row is the multiplier that balances it.
    torch.testing.assert_close(
        dual.state[lagrangian.get_parameter("rows")]["balance"],
        torch.tensor([2 / 5, 2 / 10], dtype=WIDE).sqrt(),
    )
    assert x.grad is None


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_response_of_an_adaptive_optimizer_is_a_secant(optimizer):
    torch.manual_seed(0)
    x = torch.randn(6, dtype=WIDE, requires_grad=True)
    slope = torch.randn(6, dtype=WIDE)
    primal = optimizer([x], lr=0.01)
    for _ in range(3):
        x.square().sum().backward()
        primal.step()
        primal.zero_grad()
    state = primal.state[x]
    # The second moment that the coming step will have, with the gradient of the Lagrangian at a multiplier of 2.
    coming = (2 * x.detach() + 2.0 * slope) ** 2
    if "square_avg" in state:
        moment = 0.99 * state["square_avg"] + 0.01 * coming
    else:
        moment = (0.999 * state["exp_avg_sq"] + 0.001 * coming) / (1 - 0.999**4)
    violation, theta, need = (slope @ x).reshape(1), torch.tensor([2.0], dtype=WIDE), 0.01
    true = torch.tensor([True])
    plant = measure(
        scalings([primal]),
        x.square().sum(),
        violation,
        theta,
        true,
        violation.detach().abs(),
        [1],
        need,
        torch.Generator(),
    )

    def moved(delta):
        part = (delta * slope.abs()) ** 2
        return float((0.01 * slope.abs() * part.sqrt() / (moment + part).sqrt()).sum()) - need

    delta = brentq(moved, 1e-12, 1e6, xtol=1e-14)
    p = 0.01 / (moment + (delta * slope) ** 2 + (0.2 * 2.0 * slope) ** 2).sqrt()
    torch.testing.assert_close(plant.response, (p * slope**2).sum().reshape(1), rtol=1e-6, atol=0)
    top = 0.01 * slope.abs().sum() / violation.detach().abs()
    torch.testing.assert_close(plant.speed, top[0])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_it_reaches_the_exact_solution_with_any_optimizer(kind, optimizer):
    build = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.02),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002),
    }[optimizer]
    x, primal, lagrangian, evaluate = quadratic(kind=kind, optimizer=build)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=150, primal=primal)
    train(primal, lagrangian, dual, evaluate, 900)
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]], dtype=WIDE)
    # By hand: both rows hold with equality; x solves the KKT system. As inequalities both are active too.
    system = torch.cat(
        [torch.cat([torch.eye(3, dtype=WIDE), rows.T], 1), torch.cat([rows, torch.zeros(2, 2)], 1)]
    )
    solution = torch.linalg.solve(system, torch.tensor([1.0, 1, 0, 1, -1], dtype=WIDE))
    assert (solution[3:] > 0).all()
    tolerance = 1e-3 if optimizer in ("sgd", "momentum") else 3e-2
    torch.testing.assert_close(x.detach(), solution[:3], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer", "close"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05), 1e-9),
        (lambda p: torch.optim.Adam(p, lr=0.02), 0.05),
    ],  # Adam's eps has a unit
)
def test_units_drop_out(optimizer, close):
    paths = []
    for unit in (1.0, 1000.0, 1e-3):
        x, primal, lagrangian, evaluate = quadratic(unit, nupi.Inequality, optimizer)
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)
        train(primal, lagrangian, dual, evaluate, 120)
        paths.append((x.detach().clone(), unit * lagrangian.multipliers["rows"]))
    for x, multipliers in paths[1:]:
        torch.testing.assert_close(x, paths[0][0], rtol=close, atol=close)
        torch.testing.assert_close(multipliers, paths[0][1], rtol=close, atol=close)


def test_each_constraint_may_have_a_unit_of_its_own():
    x, primal, lagrangian, evaluate = quadratic()
    other, other_primal, other_lagrangian, plain = quadratic()

    def in_units():
        loss, violations = plain()
        return loss, {"rows": violations["rows"] * torch.tensor([100.0, 0.01], dtype=WIDE)}

    for parts in ((primal, lagrangian, evaluate), (other_primal, other_lagrangian, in_units)):
        dual = nupi.SelfTuned(parts[1].parameters(), steps=60, primal=parts[0])
        train(parts[0], parts[1], dual, parts[2], 200)
    torch.testing.assert_close(x, other, rtol=1e-3, atol=1e-3)


def test_noise_is_told_from_motion():
    torch.manual_seed(0)
    steps = 100.0
    param = torch.zeros(3)
    optimizer = nupi.SelfTuned([param], steps=steps)
    for t in range(400):
        signal = torch.tensor([0.0, 0.01 * t, math.sin(t / 20)])
        param.grad = signal + torch.tensor([0.3, 0.0, 0.0]) * torch.randn(3)
        optimizer.step()
    sigma = self_tuning.sigma(optimizer.state[param])
    assert 0.2 < sigma[0] < 0.4
    assert sigma[1] < 1e-3
    assert sigma[2] < 1e-3


def test_a_satisfied_noisy_inequality_keeps_its_multiplier_near_zero():
    torch.manual_seed(0)
    lagrangian = nupi.Lagrangian({"slack": nupi.Inequality()})
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    held = []
    for _ in range(400):
        violations = {"slack": 0.1 * x - 0.3 + 0.1 * torch.randn(1)}
        lagrangian.ascend(dual, violations)
        lagrangian((x - 0.1).square().sum(), violations).backward()
        primal.step()
        primal.zero_grad()
        held.append(lagrangian.multipliers["slack"].item())
    # The velocity form at a kp of 5 holds 0.97 here (docs/choosing.md).
    assert sum(held[100:]) / 300 < 0.05


def networks(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    rows, labels = torch.randn(512, 8), (torch.rand(512) < 0.3).float()
    return model, rows, labels + 0 * rows[:, 0]


@pytest.mark.filterwarnings("ignore:steps=75 is shorter")
@pytest.mark.parametrize("rate", [0.5, 2.0])  # one that can be met, and one that no model can meet
def test_a_network_on_batches_under_adam_does_not_run_away(rate):
    model, rows, labels = networks()
    primal = torch.optim.Adam(model.parameters(), lr=1e-2)
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=75, primal=primal)
    for _ in range(300):
        some = torch.randint(512, (32,))
        logits = model(rows[some]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[some])
        violations = {"rate": rate - logits.sigmoid().mean()}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    with torch.no_grad():
        left = rate - model(rows).sigmoid().mean().item()
    multiplier = lagrangian.multipliers["rate"].item()
    if rate < 1:
        assert left < 0.03
        assert multiplier < 10
    else:
        # It grows at a constant rate, not exponentially: without the limits it is 1e9 and more by now.
        assert multiplier < 1e6


@pytest.mark.parametrize("form", ["indexed", "averaged"])
def test_indexed_and_averaged_violations_are_measured_as_the_dense_ones(form):
    found = []
    for kind in ("dense", form):
        x, primal, lagrangian, evaluate = quadratic()
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)

        def shaped(evaluate=evaluate, kind=kind):
            loss, violations = evaluate()
            rows = violations["rows"]
            if kind == "indexed":
                rows = nupi.Indexed(rows.flip(0), torch.tensor([1, 0]))
            elif kind == "averaged":
                rows = nupi.Averaged(rows * 4, torch.tensor([4, 4]))
            return loss, {"rows": rows}

        train(primal, lagrangian, dual, shaped, 50)
        found.append((x.detach().clone(), dual.gains()["rows"]["response"]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_rows_that_a_batch_does_not_show_have_the_response_of_those_that_it_shows():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)

    def first_row():
        loss, violations = evaluate()
        return loss, {"rows": nupi.Indexed(violations["rows"][:1], torch.tensor([0]))}

    train(primal, lagrangian, dual, first_row, 1)
    # lr |a_0|^2 = 0.05 * 5, in half of the steps: a batch shows one row of two, and one row is live.
    torch.testing.assert_close(dual.gains()["rows"]["response"], torch.full((2,), 0.125, dtype=WIDE))
    assert lagrangian.multipliers["rows"][1] == 0


def test_a_constraint_that_a_measurement_missed_is_measured_when_it_is_shown():
    """Steps 1, 2, 4, 8 and 16 show the first group alone; 20 is no step to measure at."""
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=60, primal=primal)
    seen = []
    for step in range(1, 25):
        loss, violations = evaluate()
        shown = torch.tensor([1, int(step % 5 == 0)])
        lagrangian.ascend(dual, {"rows": nupi.Averaged(violations["rows"], shown)})
        lagrangian(loss, {"rows": nupi.Averaged(violations["rows"], shown)}).backward()
        primal.step()
        primal.zero_grad()
        seen.append(dual.gains()["rows"]["measured_at"])
    assert seen[3:6] == [4, 5, 5]
    assert (dual.gains()["rows"]["ki"] > 0).all()
    assert lagrangian.multipliers["rows"][1] != 0


def test_a_constraint_without_a_gradient_is_not_measured_for_ever():
    x, primal, lagrangian, _ = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=1000, primal=primal)
    measured = set()
    for _ in range(60):
        violations = {"rows": torch.stack([x.sum() - 1, 0.0 * x.sum() + 1])}
        lagrangian.ascend(dual, violations)
        lagrangian(x.square().sum(), violations).backward()
        primal.step()
        primal.zero_grad()
        measured.add(dual.gains()["rows"]["measured_at"])
    assert 16 <= len(measured) < 30


def test_many_constraints_by_random_signs_are_on_the_safe_side(monkeypatch):
    torch.manual_seed(1)
    rows = torch.randn(40, 12, dtype=WIDE) + 0.5
    x = torch.zeros(12, dtype=WIDE, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    violations = rows @ x + 1
    everything = (
        violations,
        torch.zeros(40, dtype=WIDE),
        torch.ones(40, dtype=torch.bool),
        violations.detach(),
    )
    monkeypatch.setattr("nupi.plant.response.MOST_NUMBERS", 100)
    signs = torch.Generator().manual_seed(0)
    plant = measure(scalings([primal]), x.sum(), *everything, [40], 1.0, signs)
    largest = torch.linalg.eigvalsh(0.1 * rows @ rows.T)[-1]
    assert (plant.response == plant.response[0]).all()
    assert 0.5 * largest < plant.response[0] < 3 * largest


def test_a_checkpoint_goes_on_bit_for_bit():
    def fresh():
        x, primal, lagrangian, evaluate = quadratic(optimizer=lambda p: torch.optim.Adam(p, lr=0.02))
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
        return x, primal, lagrangian, evaluate, dual

    x, primal, lagrangian, evaluate, dual = fresh()
    train(primal, lagrangian, dual, evaluate, 17)
    file = io.BytesIO()
    torch.save([x.detach(), primal.state_dict(), lagrangian.state_dict(), dual.state_dict()], file)
    train(primal, lagrangian, dual, evaluate, 30)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    x2, primal2, lagrangian2, evaluate2, dual2 = fresh()
    x2.data.copy_(saved[0])
    for part, state in zip((primal2, lagrangian2, dual2), saved[1:], strict=True):
        part.load_state_dict(state)
    train(primal2, lagrangian2, dual2, evaluate2, 30)
    assert torch.equal(x, x2)
    assert torch.equal(lagrangian.multipliers["rows"], lagrangian2.multipliers["rows"])


def test_a_copy_goes_on_with_the_response_it_knows():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    twin, its_lagrangian = copy.deepcopy((dual, lagrangian))
    assert torch.equal(next(iter(twin.gains().values()))["ki"], dual.gains()["rows"]["ki"])
    _, violations = evaluate()
    lagrangian.ascend(dual, violations)
    its_lagrangian.ascend(twin, violations)
    assert torch.equal(lagrangian.multipliers["rows"], its_lagrangian.multipliers["rows"])


def test_freeze_gives_a_nupi_with_the_gains_found():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=40, primal=primal)
    train(primal, lagrangian, dual, evaluate, 20)
    frozen, found = dual.freeze(), dual.gains()["rows"]
    assert isinstance(frozen, nupi.NuPI)
    (group,) = frozen.param_groups
    assert group["params"][0] is lagrangian.get_parameter("rows")
    for name in ("ki", "kp", "nu"):
        torch.testing.assert_close(group[name], found[name])
    train(primal, lagrangian, frozen, evaluate, 5)


@pytest.mark.parametrize("between", [2, 10])
def test_once_an_epoch_the_response_counts_the_steps_between(between):
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=30, primal=primal)
    for step in range(600):
        loss, violations = evaluate()
        if step % between == 0:
            lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == between
    # The Hessian is the identity and P is 0.05: a drift relaxes by 0.05 a primal step.
    torch.testing.assert_close(
        dual.gains()["rows"]["curvature"], torch.full((2,), 0.05, dtype=WIDE), rtol=1e-6, atol=0
    )
    assert evaluate()[1]["rows"].abs().max() < 1e-3


def test_a_short_horizon_is_named_once_with_the_number_that_would_do():
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.Adam([x], lr=1e-3)
    lagrangian = nupi.Lagrangian({"far": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)

    def evaluate():
        return x.square().sum() + x.sum(), {"far": x - 1.0}

    with pytest.warns(UserWarning, match="steps=50 is shorter .* Give steps=10[0-9][0-9]") as seen:
        train(primal, lagrangian, dual, evaluate, 40)
    assert len(seen) == 1


def test_a_learning_rate_that_falls_after_the_horizon_is_no_short_horizon():
    """Warnings are errors here: the schedule's last steps are tiny, and would ask for thousands of steps."""
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.05)
    lagrangian = nupi.Lagrangian({"near": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)

    def evaluate():
        return x.square().sum() + x.sum(), {"near": x - 1.0}

    train(primal, lagrangian, dual, evaluate, 100)
    primal.param_groups[0]["lr"] = 1e-9
    with torch.no_grad():
        x.add_(1.0)  # far from met again
    train(primal, lagrangian, dual, evaluate, 60)
    assert dual.gains()["near"]["measured_at"] > 100


def test_without_a_primal_it_identifies_the_response():
    _, primal, lagrangian, evaluate = quadratic()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=150)
    train(primal, lagrangian, dual, evaluate, 900)
    assert evaluate()[1]["rows"].abs().max() < 0.02
    assert dual.gains()["rows"]["measured_at"] == 0


def test_under_autocast_and_accumulation_it_measures_as_without():
    model, rows, labels = networks()
    primal = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lagrangian = nupi.Lagrangian({"rate": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=50, primal=primal)
    for _ in range(100):
        some = torch.randint(512, (64,))
        for part in some.chunk(2):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(rows[part]).squeeze(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[part])
                violations = {"rate": logits.sigmoid().float().mean() - 0.6}
            if part is not some:
                (lagrangian(loss, violations) / 2).backward()
        lagrangian.ascend(dual, violations)
        primal.step()
        primal.zero_grad()
    assert dual.param_groups[0]["per_step"] == 1
    with torch.no_grad():
        assert abs(model(rows).sigmoid().mean() - 0.6) < 0.06


def test_bad_requests_are_refused():
    params = [torch.zeros(2)]
    with pytest.raises(ValueError, match=r"steps must be at least 1, but 0\.5 came"):
        nupi.SelfTuned(params, steps=0.5)
    with pytest.raises(ValueError, match="steps must be finite"):
        nupi.SelfTuned(params, steps=math.inf)
    with pytest.raises(ValueError, match="scale must lie between"):
        nupi.SelfTuned(params, steps=5, scale=0.0)
    for name in ("steps", "scale"):
        with pytest.raises(TypeError, match=f"{name} must be a number, but a tensor came; use param groups"):
            nupi.SelfTuned([{"params": params, name: torch.ones(2)}], steps=5)
    dual = nupi.SelfTuned([torch.zeros(2)], steps=5)
    dual.param_groups[0]["lr"] = -1.0
    dual.param_groups[0]["params"][0].grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"lr must lie in \[0, inf\), but -1\.0 came"):
        dual.step()
    with pytest.raises(ValueError, match=r"steps must be at least 1, but -5\.0 came"):
        nupi.SelfTuned(params, steps=-5.0)
    with pytest.raises(TypeError, match="but parameters came; give the optimizer itself"):
        nupi.SelfTuned(params, steps=5, primal=params)
    with pytest.raises(TypeError, match="primal is a Adadelta, whose response cannot be measured"):
        nupi.SelfTuned(params, steps=5, primal=torch.optim.Adadelta([torch.zeros(1, requires_grad=True)]))


def test_before_the_first_step_all_gains_are_zero_and_nothing_is_smoothed():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(3)})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
    ((_, found),) = dual.gains().items()
    assert found.pop("measured_at") == 0
    assert all(torch.equal(value, torch.zeros(3)) for value in found.values())


def test_constraints_that_neither_push_nor_are_violated_have_no_part_in_the_response_of_others():
    _, primal, lagrangian, evaluate = quadratic(
        kind=nupi.Inequality, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5)
    )
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, evaluate, 1)
    # At x = 0 the first row is met and the second violated; M = 0.1 [[5, -2], [-2, 10]].
    overlap = 1 + 2 / math.sqrt(50)
    expected = torch.tensor([0.5 * overlap, 1.0], dtype=WIDE)
    torch.testing.assert_close(dual.gains()["rows"]["response"], expected)


def test_averages_over_less_than_a_step_are_the_newest_number():
    param = torch.zeros(1)
    dual = nupi.SelfTuned([param], steps=1)
    for error in (1.0, 3.0):
        param.grad = torch.tensor([error])
        dual.step()
    state = dual.state[param]
    assert [state[name].item() for name in ("mean", "slow", "e_fast", "last")] == [3.0, 3.0, 3.0, 3.0]


def test_a_constraint_that_has_not_been_seen_yet_is_left_out_of_a_measurement():
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.Adam([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"seen": nupi.Equality(), "unseen": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    train(primal, lagrangian, dual, lambda: (x.square().sum(), {"seen": x.sum() - 1}), 3)
    found = dual.gains()
    assert found["seen"]["response"] > 0
    assert lagrangian.multipliers["unseen"] == 0
    assert not dual.state.get(lagrangian.get_parameter("unseen"))


def test_steps_that_are_longer_than_the_run_are_warned_of_by_whoever_knows_its_length():
    message = "steps=500 is longer than the run of 100 dual steps.*Give steps=25, a quarter of the run"
    with pytest.warns(UserWarning, match=message):
        nupi.minimize(
            lambda x: x.square().sum(),
            torch.zeros(2),
            equality=lambda x: x.sum() - 1,
            dual=partial(nupi.SelfTuned, steps=500),
            steps=100,
        )
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    with pytest.warns(UserWarning, match=message):
        make_dual(partial(nupi.SelfTuned, steps=500), lagrangian, 100, [])
    assert make_dual(partial(nupi.SelfTuned, steps=100), lagrangian, 100, []).param_groups[0]["steps"] == 100


def test_a_loss_without_a_gradient_measures_nothing():
    x = torch.ones(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=100, primal=primal)
    for _ in range(3):
        violations = {"sum": x.sum() - 1}
        lagrangian.ascend(dual, violations)
        lagrangian(torch.tensor(2.0), violations)
    assert dual.gains()["sum"]["response"].item() == 0.0


def test_the_two_violations_before_a_retuning_are_noted():
    param = torch.zeros(1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    dual = nupi.SelfTuned([param], steps=64 * 10, primal=optimizer)  # a stride of ten steps
    seen = []
    for step in range(64 + 160):
        error = math.sin(step)
        param.grad = torch.tensor([error])
        before = dual.state[param]["last"].item() if step else 0.0
        dual.step()
        state, phase = dual.state[param], dual.param_groups[0]["phase"]
        if step >= 64:
            seen.append(phase)
            assert state["last"].item() == pytest.approx(before if phase == "resting" else error)
            if seen[-2:-1] == ["noting"]:
                assert state["change"].item() == pytest.approx(error - before, abs=1e-6)
    pause = [*["resting"] * 7, *["noting"] * 2]
    assert seen == [*[*pause, "watching"] * 7, *pause, "retuning"] * 2


@pytest.mark.parametrize("lr", [0.5, 2.0])
@pytest.mark.parametrize("kind", [nupi.Equality, nupi.Inequality])
def test_lr_scales_what_a_step_does_and_what_gains_says(lr, kind):
    """Of two that have found the same, one of which is slowed down for a step like the others."""
    moved = {}
    for scale in (1.0, lr):
        lagrangian = nupi.Lagrangian({"c": kind(2)}).double()
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
        for error in (1.0, 0.8, 0.7):
            lagrangian.ascend(dual, {"c": torch.tensor([error, 2 * error]).double()})
        dual.param_groups[0]["lr"] = scale
        before = lagrangian.multipliers["c"].clone()
        lagrangian.ascend(dual, {"c": torch.tensor([0.6, 1.5]).double()})
        moved[scale] = lagrangian.multipliers["c"] - before
        (state,) = dual.state.values()
        (found,) = dual.gains().values()
        torch.testing.assert_close(found["ki"], scale * state["ki"])
        torch.testing.assert_close(found["kp"], scale * state["kp"])
        torch.testing.assert_close(found["nu"], 1.0 - state["weight"])
        assert (found["ki"] > 0).all()
    torch.testing.assert_close(moved[lr], lr * moved[1.0])


@pytest.mark.parametrize("lr", [0.5, 1.0])
def test_what_lies_beyond_a_bound_is_nupis_with_the_scaled_gains(lr):
    """beyond = min(u - ki e, 0) with u = theta + ki e + kp (xi_t - xi_{t-1}), and never further than kp xi_t."""
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)}).double()
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=10)
    for error in (1.0, 0.9, 0.8, 0.75, 0.7):
        lagrangian.ascend(dual, {"c": torch.tensor([error, 2 * error]).double()})
    dual.param_groups[0]["lr"] = lr
    (state,) = dual.state.values()
    theta, xi = lagrangian.multipliers["c"].clone(), state["xi"].clone()
    error = torch.tensor([-9.0, -7.0]).double()
    lagrangian.ascend(dual, {"c": error})
    (found,) = dual.gains().values()
    u = theta + found["ki"] * error + found["kp"] * (state["xi"] - xi)
    torch.testing.assert_close(lagrangian.multipliers["c"], u.clamp(min=0))
    without = u - found["ki"] * error
    assert (u < 0).all()
    assert (without < 0).any()
    torch.testing.assert_close(
        state["beyond"], torch.maximum(without.clamp(max=0), found["kp"] * state["xi"])
    )
