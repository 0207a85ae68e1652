"""Findings: the runs whose truth is known, warnings while a run goes on, and advice that works when followed."""

import re
import warnings
from functools import partial

import pytest
import torch
from benchmarks.findings.runs import make
from benchmarks.findings.score import found_in
from benchmarks.findings.training import Primal, Run, label, train

import nupi
from nupi.monitor import judge
from nupi.monitor.advice import critical_gains

QUICK = [
    "qp-healthy",
    "qp-diverging",
    "qp-oscillating",
    "ineq-oscillating",
    "noise-healthy",
    "noise-noisy",
    "rectified",
    "inactive",
    "slow",
    "contradiction",
    "out-of-reach",
    "explosion",
    "capped",
    "capped-contradiction",
    "uncapped",
    "adam-oscillating",
]


@pytest.mark.parametrize("family", QUICK)
def test_a_run_is_called_what_it_is(family):
    """The first seed of the held-out half; the whole of it is scored by `python -m benchmarks.findings`."""
    run = make(family, 1000)
    assert found_in(run) - run.also == run.truth


@pytest.mark.parametrize(("momentum", "adam"), [(0.0, False), (0.9, False), (0.0, True)])
def test_the_plain_loop_of_the_generator_is_the_library(momentum, adam):
    h, a, b = torch.diag(torch.tensor([1.0, 2.0]).double()), torch.tensor([[1.0, -0.5]]).double(), -1.0
    run = Run("x", 0, **label(), inequality=True, ki=0.3, kp=0.7, nu=0.5)
    primal = Primal(0.05, momentum, adam=adam)
    run = train(
        run, [0.0, 0.0], lambda x: h.numpy() @ x, lambda x: (a.numpy() @ x - b, a.numpy()), primal, 60
    )
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(init=torch.zeros(1).double())})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.3, kp=0.7, nu=0.5, init="ema", form="velocity")
    kind = torch.optim.Adam([x], lr=0.05) if adam else torch.optim.SGD([x], lr=0.05, momentum=momentum)
    for step in range(60):
        c = {"c": a @ x - b}
        torch.testing.assert_close(c["c"].detach(), run.violation[step], rtol=1e-9, atol=1e-12)
        lagrangian.ascend(dual, c)
        torch.testing.assert_close(lagrangian.multipliers["c"], run.multiplier[step], rtol=1e-9, atol=1e-12)
        kind.zero_grad()
        lagrangian(0.5 * x @ h @ x, c).backward()
        kind.step()


def scalar_run(ki, kp, steps=1500, monitored=True, **options):
    """min x^2 / 20 subject to x = 1 or x >= 1, by gradient descent: an oscillator with b = lr and little damping."""
    return run_under(
        partial(nupi.NuPI, ki=ki, kp=kp, init="ema", form="velocity"), steps, monitored, **options
    )


def run_under(make_dual, steps=1500, monitored=True, **options):
    """The same under any dual optimizer."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    kind = options.pop("kind", nupi.Equality)
    lagrangian = nupi.Lagrangian({"level": kind(init=torch.zeros(1).double())})
    dual = make_dual(lagrangian.parameters())
    primal = torch.optim.SGD([x], lr=0.05)
    monitor = nupi.Monitor(lagrangian, **options) if monitored else None
    for _ in range(steps):
        violation = {"level": 1 - x}
        lagrangian.ascend(dual, violation)
        primal.zero_grad()
        lagrangian(0.05 * x.square().sum(), violation).backward()
        primal.step()
    return monitor, 1.0 - x.item()


def test_a_swing_is_measured_as_the_spectrum_has_it_and_its_advice_ends_it():
    ki = 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        monitor, left = scalar_run(ki, 0.0, 400)
    (finding,) = monitor.diagnose()
    assert finding.kind == "oscillating"
    value = torch.linalg.eigvals(nupi.theory.iteration_matrix(0.1, -1.0, lr=0.05, ki=ki))
    (mode,) = [v for v in value if v.imag > 1e-6]
    period = 2 * torch.pi / mode.angle().item()
    said = re.search(r"every ([\d.]+) steps.*damping ratio ([\d.-]+)\)", finding.evidence)
    assert float(said[1]) == pytest.approx(period / 2, rel=0.05)
    assert float(said[2]) == pytest.approx((-mode.log().real / mode.log().abs()).item(), abs=0.01)
    kp = float(re.search(r"raise it to about ([\d.e+-]+)", finding.advice)[1])
    better, left_then = scalar_run(ki, kp, 400)
    assert better.diagnose() == []
    assert abs(left_then) < 1e-3 < abs(left)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (partial(nupi.NuPI, ki=0.0), "has a ki above 0"),
        (partial(torch.optim.SGD, lr=0.0, maximize=True), "has a lr above 0"),
        (partial(nupi.SelfTuned, steps=20), "a response of 0 means that no measurement has found a gradient"),
    ],
    ids=["NuPI", "SGD", "SelfTuned"],
)
@pytest.mark.filterwarnings("ignore:16 measurements found no response")
def test_a_violated_constraint_whose_multiplier_never_moves_is_found(kind, said):
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    x = torch.ones(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    options = {"primal": primal} if kind.func is nupi.SelfTuned else {}
    dual = kind(lagrangian.parameters(), **options)
    monitor = nupi.Monitor(lagrangian, warn=False)
    for _ in range(60):
        c = {"c": 0.0 * x + 0.5}  # nothing that is trained moves it
        lagrangian.ascend(dual, c)
        primal.zero_grad()
        lagrangian(x.square().sum(), c).backward()
        primal.step()
    (finding,) = monitor.diagnose()
    assert (finding.kind, finding.severity) == ("slow", "severe")
    assert "the violation is still 0.5, and the multiplier has been 0 throughout" in finding.evidence
    assert said in finding.advice


def test_steps_that_are_far_too_many_are_found():
    """Gains are known, and so small that the multiplier stays at 0 while the loss moves the violation."""
    torch.manual_seed(0)
    rows = torch.randn(1000, 2)
    labels = (rows[:, 0] + 0.5 * torch.randn(1000) > 0.3).float()
    model = torch.nn.Linear(2, 1)
    primal = torch.optim.Adam(model.parameters(), lr=0.05)
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=4000, primal=primal)
    monitor = nupi.Monitor(lagrangian)
    for _ in range(400):
        logits = model(rows).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels, pos_weight=torch.tensor(5.0)
        )
        violations = {"rate": logits[labels == 0].sigmoid().mean() - 0.05}
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    (finding,) = monitor.diagnose()
    assert (finding.kind, finding.severity) == ("slow", "moderate")
    assert "give it fewer steps, at most a quarter of the run" in finding.advice


def test_a_violation_that_grows_with_its_multiplier_has_the_wrong_sign():
    """The user bounds x from above by 1, and gives 1 - x."""
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    x = torch.zeros(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.02)
    monitor = nupi.Monitor(lagrangian, warn=False)
    for _ in range(200):
        lagrangian.ascend(dual, {"c": (1 - x).detach()})
        primal.zero_grad()
        lagrangian(x.square().sum(), {"c": x - 1}).backward()
        primal.step()
    (finding,) = monitor.diagnose()
    assert finding.kind == "infeasible"
    assert "grown with its multiplier: check its sign" in finding.advice


def test_where_nobody_sets_gains_the_advice_names_none():
    """A delay that the rule knows nothing of makes it swing; ki and kp would be no help to its user."""
    lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
    x = torch.ones(1, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    dual = nupi.SelfTuned(lagrangian.parameters(), 60, primal=primal)
    monitor = nupi.Monitor(lagrangian, warn=False)
    past = [torch.ones(1)] * 25
    for _ in range(600):
        past = [*past[1:], x.detach().clone()]
        lagrangian.ascend(dual, {"c": past[0]})
        primal.zero_grad()
        lagrangian(0.0 * x.sum(), {"c": x}).backward()
        primal.step()
    (finding,) = monitor.diagnose()
    assert finding.kind in {"oscillating", "diverging"}
    assert "twice the steps" in finding.advice
    assert not re.search(r"\b(ki|kp|nu)\b", finding.advice)


@pytest.mark.parametrize("lr", [0.1, 4.0])
def test_advice_is_in_the_gains_that_are_set_whatever_lr_multiplies_them(lr):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        monitors = [run_under(partial(nupi.NuPI, ki=0.2 / lr, lr=lr)), run_under(partial(nupi.NuPI, ki=0.2))]
    (finding,), (usual,) = (monitor.diagnose() for monitor, _ in monitors)
    kp, usual_kp = (
        float(re.search(r"Kp is 0: raise it to about ([\d.e+-]+\d)", f.advice)[1]) for f in (finding, usual)
    )
    assert kp * lr == pytest.approx(usual_kp, rel=0.01)
    better, _ = run_under(partial(nupi.NuPI, ki=0.2 / lr, kp=kp, lr=lr))
    assert better.diagnose() == []


def test_advice_on_slowness_is_in_the_gains_that_are_set():
    (usual,) = run_under(partial(nupi.NuPI, ki=1e-5))[0].diagnose()
    (finding,) = run_under(partial(nupi.NuPI, ki=1e-3, lr=1e-2))[0].diagnose()
    assert (usual.kind, finding.kind) == ("slow", "slow")
    ki, usual_ki = (float(re.search(r"to about ([\d.e+-]+\d)", f.advice)[1]) for f in (finding, usual))
    assert finding.advice.startswith("Raise ki from 0.001 to")
    assert ki / 100 == pytest.approx(usual_ki, rel=0.01)


def test_advice_for_an_optimizer_without_kp_can_be_followed():
    ascent = partial(torch.optim.SGD, maximize=True)
    (finding,) = run_under(partial(ascent, lr=0.2), warn=False)[0].diagnose()
    said = re.fullmatch(
        r"Use nupi.NuPI in place of SGD, with ki about (\S+) and kp about (\S+)", finding.advice
    )
    ki, kp = map(float, said.groups())
    assert run_under(partial(nupi.NuPI, ki=ki, kp=kp))[0].diagnose() == []
    (finding,) = run_under(partial(ascent, lr=1e-5))[0].diagnose()
    assert finding.kind == "slow"
    assert finding.advice.startswith("Raise lr from 1e-05 to about ")
    (finding,) = run_under(partial(torch.optim.Adam, lr=1e-5, maximize=True))[0].diagnose()
    assert finding.kind == "slow"
    assert finding.advice.startswith("Raise lr tenfold")


@pytest.mark.parametrize("every", [2, 5])
def test_a_period_is_told_in_steps_however_many_are_recorded(every):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        all_of_it, _ = scalar_run(0.2, 0.0, 1000)
        some_of_it, _ = scalar_run(0.2, 0.0, 1000, every=every)
    pattern = r"period ([\d.]+), .*about ([\d.]+\d)"
    (period, kp), (same, about) = (
        map(float, re.search(pattern, str(monitor.diagnose()[0])).groups())
        for monitor in (all_of_it, some_of_it)
    )
    assert same == pytest.approx(period, rel=0.05)
    assert about == pytest.approx(kp, rel=0.1)


def test_the_gains_of_the_advice_are_critical_by_the_theory():
    b, h, ki = 0.3, 0.05, 0.02
    frequency, damping = (b * ki) ** 0.5, h / (2 * (b * ki) ** 0.5)
    same_ki, kp = critical_gains(ki, 0.0, frequency, damping)
    assert same_ki == ki
    assert nupi.theory.spectrum.damping_ratio(h, b**0.5, ki, kp) == pytest.approx(1.0)


def test_what_is_severe_is_warned_of_once_in_one_line():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scalar_run(0.2, 0.0, 3000)
    assert [w.category for w in seen] == [nupi.ConstraintWarning]
    message = str(seen[0].message)
    assert message.startswith("'level' oscillates: the violation crosses zero every")
    assert "\n" not in message
    assert seen[0].filename == __file__


@pytest.mark.parametrize("late", [True, False])
def test_what_seems_infeasible_is_warned_of_when_it_still_does(late):
    """A violation that does not answer at first is not worth a word until it has been looked at twice."""
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.01)
    monitor = nupi.Monitor(lagrangian)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1100):
            share = min(1.0, max(0.0, (step - 300) / 200)) if late else 0.0
            lagrangian.ascend(dual, {"c": torch.tensor(1.0 - share)})
            if step == 256 + 10:
                assert [finding.kind for finding in monitor.diagnose()] == ["infeasible"]
                assert not caught
    assert [str(each.message).partition(":")[0] for each in caught] == (
        [] if late else ["'c' seems infeasible"]
    )


def test_a_warning_that_is_an_error_ends_the_run():
    with warnings.catch_warnings():
        warnings.simplefilter("error", nupi.ConstraintWarning)
        with pytest.raises(nupi.ConstraintWarning, match="oscillates"):
            scalar_run(0.2, 0.0)


def test_who_asks_what_is_wrong_gets_an_answer_and_no_warning(tmp_path):
    """A block of steps that still waits is taken in then, and would be warned of, or raise if that is asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", nupi.ConstraintWarning)
        monitor, _ = scalar_run(0.2, 0.0, 210)
        assert [finding.kind for finding in monitor.diagnose()] == ["oscillating"]
        monitor, _ = scalar_run(0.2, 0.0, 210)
        assert "oscillates" in monitor.explain()
        monitor, _ = scalar_run(0.2, 0.0, 210)
        monitor.report(tmp_path / "run.html")
        monitor, _ = scalar_run(0.2, 0.0, 210)
        with pytest.raises(nupi.ConstraintWarning, match="oscillates"):
            monitor.close()


def test_a_monitor_that_has_seen_no_step_says_so():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    monitor = nupi.Monitor(lagrangian)
    with pytest.warns(RuntimeWarning, match="seen no step .* call lagrangian.ascend"):
        assert monitor.diagnose() == []
    lagrangian.ascend(dual, {"c": torch.tensor(1.0)})
    assert monitor.diagnose() == []


def test_a_finding_of_a_whole_group_says_so():
    violation = torch.stack([torch.linspace(1.0, 0.9, 300)] * 2, dim=1)
    multiplier = torch.linspace(0.0, 30.0, 300).unsqueeze(1).expand(-1, 2)
    (finding,) = judge(violation, multiplier, inequality=True, name="c")
    assert finding.constraint == "c[0]"
    assert finding.evidence.endswith("(and all others of 'c')")


def test_a_healthy_run_is_quiet():
    monitor, left = scalar_run(0.02, 1.0)
    assert monitor.diagnose() == []
    assert abs(left) < 1e-3
    assert monitor.explain() == ""


def test_the_record_explains_a_run_that_went_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nupi.ConstraintWarning)
        monitor, _ = scalar_run(90.0, 0.0, 60)
    assert "diverges" in monitor.explain(["level"])


def test_capped():
    t = torch.arange(400.0)
    theta = (0.05 * t).clamp(max=5.0)
    (finding,) = judge(torch.full((400,), 0.3), theta, inequality=True, upper=5.0)
    assert finding.kind == "capped"
    assert "bound of 5" in finding.evidence
    assert "50" in finding.advice
    assert judge(torch.full((400,), -0.3), torch.zeros(400), inequality=True, upper=5.0)[0].kind == "inactive"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_do_not_matter(scale):
    """The same run in other units of the violation, where multipliers shrink as it grows."""
    for family in ("qp-oscillating", "qp-diverging", "noise-noisy", "qp-healthy"):
        run = make(family, 1001)
        run.violation, run.multiplier = run.violation * scale, run.multiplier / scale
        run.ki, run.kp = run.ki / scale**2, run.kp / scale**2
        assert found_in(run) - run.also == run.truth


def test_one_finding_a_kind_for_a_group_and_inactive_only_as_a_whole():
    t = torch.arange(600.0)
    swing = torch.cos(t / 9)
    e = torch.stack([swing, 2 * swing, -torch.ones(600)], 1)
    theta = torch.stack([torch.sin(t / 9) + 1, torch.sin(t / 9) + 1, torch.zeros(600)], 1)
    (finding,) = judge(e, theta, inequality=True, name="rates")
    assert (finding.kind, finding.constraint) == ("oscillating", "rates[0]")
    assert "1 more of 'rates'" in finding.evidence


@pytest.mark.parametrize("steps", [12, 20, 40, 64, 100, 300])
def test_noise_is_no_swing(steps):
    """White noise about zero, 300 constraints: nothing severe but by a chance of less than one in a hundred."""
    g = torch.Generator().manual_seed(steps)
    alarms = 0
    for _ in range(300):
        e = torch.randn(steps, generator=g)
        alarms += bool(judge(e, 0.01 * e.cumsum(0), inequality=False, ki=0.01, kp=0.0))
    assert alarms <= 3


@pytest.mark.parametrize("steps", range(9))
def test_short_and_empty_runs_are_judged_without_an_error(steps):
    judge(torch.randn(steps, 2), torch.randn(steps, 2), inequality=False)
    judge(torch.zeros(steps), torch.zeros(steps), inequality=True)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="violation has shape"):
        judge(torch.zeros(5), torch.zeros(4), inequality=True)
