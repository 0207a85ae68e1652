"""Families of runs on quadratic programs: healthy, diverging, swinging, noisy, inactive, slow, infeasible, capped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.findings.linear import Linear, classify, gains, linear
from benchmarks.findings.training import Run, label, log_uniform, numbers

if TYPE_CHECKING:
    from random import Random

    from benchmarks.findings.training import Family


def equality(kind: str, speed: tuple[float, float], ratio: tuple[float, float]) -> Family:
    def family(random: Random) -> Run | None:
        problem, steps = linear(random), random.choice([300, 600, 1200, 2400])
        ki, kp = gains(random, problem, speed, ratio)
        nu = random.choice([0.0, 0.0, 0.5, 0.9]) if kp else 0.0
        if classify(problem, ki, kp, nu, steps) != kind:
            return None
        also = {"diverging": ("oscillating",), "oscillating": ("overshoot",), "overshoot": ("oscillating",)}
        names = label(*(() if kind == "healthy" else (kind,)), also=also.get(kind, ()))
        run = Run(f"qp-{kind}", 0, **names, inequality=False, ki=ki, kp=kp, nu=nu)
        return problem.run(run, steps)

    return family


def inequality(kind: str, speed: tuple[float, float], ratio: tuple[float, float]) -> Family:
    """Inequalities that all bind at the optimum: near it the spectrum is that of equalities."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random), random.choice([600, 1200, 2400])
        ki, kp = gains(random, problem, speed, ratio)
        found = classify(problem, ki, kp, 0.0, steps)
        wanted = found if kind == "healthy" else {"diverging": "oscillating"}.get(found or "", found)
        if wanted != kind:
            return None
        run = Run(
            f"ineq-{kind}",
            0,
            **label(*(() if kind == "healthy" else (kind,)), also=_ALSO.get(kind, ())),
            inequality=True,
            ki=ki,
            kp=kp,
            nu=0.0,
        )
        run = problem.run(run, steps)
        if kind == "oscillating" and found == "diverging":
            # The projection limits the swing, so count how often a multiplier leaves 0, or turns, without noise.
            turns = (run.multiplier.diff(dim=0)[:-1] * run.multiplier.diff(dim=0)[1:] < 0).sum(0)
            if int(turns.max()) < 10 or not bool(run.violation.isfinite().all()):
                return None
        return run

    return family


_ALSO = {"oscillating": ("overshoot", "diverging"), "overshoot": ("oscillating",)}


def noisy_equality(kind: str) -> Family:
    """A well-damped equality measured with noise: kp (1 - nu) sigma is small beside the multiplier, or is not."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
        ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
        nu = random.choice([0.0, 0.5, 0.9]) if kind == "healthy" else random.choice([0.0, 0.0, 0.3])
        if kp <= 0 or classify(problem, ki, kp, nu, steps) != "healthy":
            return None
        best = needed(problem)
        share = log_uniform(random, 0.005, 0.05) if kind == "healthy" else log_uniform(random, 0.6, 5.0)
        noise = share * best / (kp * (1 - nu))
        if kind == "healthy" and (noise > 0.2 * abs(float(problem.b)) or ki * noise > 0.05 * best):
            return None
        names = label(*(() if kind == "healthy" else ("noisy",)))
        run = Run(f"noise-{kind}", 0, **names, inequality=False, ki=ki, kp=kp, nu=nu)
        return problem.run(run, steps, noise, random.randrange(2**31))

    return family


def rectified(random: Random) -> Run | None:
    """An inequality that is far from violated, but whose noise and kp often move its multiplier above 0."""
    problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
    ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
    if kp <= 0 or classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    problem.b = -problem.b  # now 0, the start, satisfies it
    noise = abs(float(problem.b)) * log_uniform(random, 0.6, 2.0)
    run = Run("rectified", 0, **label("noisy"), inequality=True, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def inactive(random: Random) -> Run | None:
    """An inequality that the unconstrained optimum satisfies by a margin."""
    problem, steps = linear(random), random.choice([300, 600, 1200])
    ki, kp = gains(random, problem, (0.01, 0.1), (0.5, 1.5))
    problem.b = -problem.b
    # Noise with kp would move the multiplier above 0: that is another kind.
    noise = 0.0 if kp else random.choice([0.0, 0.05, 0.1]) * float(problem.b.abs().min())
    problem.x = torch.randn(len(problem.x), generator=numbers(random), dtype=torch.float64) * 0.05
    if bool((problem.a @ problem.x - problem.b > -0.5 * problem.b).any()):
        return None
    run = Run("inactive", 0, **label("inactive"), inequality=True, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def slow_gain(random: Random) -> Run | None:
    """Ki far too small: by the spectrum it would take six times as many steps and more; measured with noise too."""
    problem, steps = linear(random, 1), random.choice([300, 600, 1200])
    ki, _ = gains(random, problem, (1e-4, 2e-3), (1.0, 1.0))
    if classify(problem, ki, 0.0, 0.0, steps) != "slow":
        return None
    noise = random.choice([0.0, 0.0, 0.03]) * abs(float(problem.b))
    run = Run("slow", 0, **label("slow"), inequality=random.random() < 0.5, ki=ki, kp=0.0, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def contradiction(random: Random) -> Run | None:
    """Two constraints of one slope that cannot both hold: a'x <= -1 and a'x >= 1, or a'x = 1 and a'x = 2."""
    problem, steps = linear(random, 1), random.choice([300, 600, 1200, 2400])
    ki, kp = gains(random, problem, (0.01, 0.15), (0.6, 1.2))
    if classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    both = random.random() < 0.5
    size = abs(float(problem.b))
    if both:
        problem.a, problem.b = torch.cat([problem.a, -problem.a]), torch.tensor([-size, -size]).double()
    else:
        problem.a, problem.b = torch.cat([problem.a, problem.a]), torch.tensor([-size, -2 * size]).double()
    noise = random.choice([0.0, 0.0, 0.03, 0.1]) * size
    run = Run("contradiction", 0, **label("infeasible"), inequality=both, ki=ki, kp=kp, nu=0.0)
    return problem.run(run, steps, noise, random.randrange(2**31))


def capped(random: Random) -> Run | None:
    """A bound on the multiplier that is smaller than the constraint needs, so that a violation remains."""
    problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
    ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
    if classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    upper = random.uniform(0.2, 0.8) * needed(problem)
    noise = random.choice([0.0, 0.0, 0.05]) * abs(float(problem.b))
    run = Run("capped", 0, **label("capped"), inequality=True, ki=ki, kp=kp, nu=0.0, upper=upper)
    run = problem.run(run, steps, noise, random.randrange(2**31))
    # A run that reaches its bound late is a borderline case.
    return run if float(run.multiplier[: steps // 3].max()) >= upper else None


def capped_contradiction(random: Random) -> Run | None:
    """Two constraints that cannot both hold, with bounded multipliers: both end at the bound."""
    problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
    ki, kp = gains(random, problem, (0.02, 0.1), (0.8, 1.2))
    size = abs(float(problem.b))
    problem.a, problem.b = torch.cat([problem.a, -problem.a]), torch.tensor([-size, -size]).double()
    upper = random.uniform(0.05, 0.25) * ki * size * steps
    names = label("capped")
    run = Run("capped-contradiction", 0, **names, inequality=True, ki=ki, kp=kp, nu=0.0, upper=upper)
    run = problem.run(run, steps)
    return run if bool((run.multiplier[steps // 3] >= upper).all()) else None


def uncapped(random: Random) -> Run | None:
    """A healthy run with a bound on its multiplier that is larger than the constraint needs."""
    problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
    ki, kp = gains(random, problem, (0.02, 0.1), (0.9, 1.4))
    if classify(problem, ki, kp, 0.0, steps) != "healthy":
        return None
    upper = log_uniform(random, 1.3, 10.0) * needed(problem)
    run = Run("uncapped", 0, **label(), inequality=True, ki=ki, kp=kp, nu=0.0, upper=upper)
    return problem.run(run, steps)


def needed(problem: Linear) -> float:
    """The multiplier at the optimum of a problem with one constraint."""
    return abs(float(problem.b / (problem.a @ torch.linalg.solve(problem.h, problem.a.T))))
