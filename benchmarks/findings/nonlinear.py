"""Families of runs on problems that are not linear: measures that saturate, balls, Adam, small networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

import nupi
from benchmarks.findings.linear import linear
from benchmarks.findings.training import Primal, Run, label, log_uniform, numbers, train

if TYPE_CHECKING:
    from random import Random

    from benchmarks.findings.training import Array, Family


def out_of_reach(random: Random) -> Run | None:
    """A smooth measure that never reaches its target: sigmoid(w'x) >= 1 + margin, from SGD, momentum or Adam."""
    n, steps = random.randint(1, 5), random.choice([600, 1200, 2400])
    w = torch.randn(n, generator=numbers(random), dtype=torch.float64).numpy()
    margin = log_uniform(random, 0.02, 1.0)
    primal = optimizer(random)
    run = Run(
        "out-of-reach",
        0,
        **label("infeasible"),
        inequality=True,
        ki=log_uniform(random, 0.01, 0.3),
        kp=random.choice([0.0, 1.0]),
        nu=0.0,
    )
    noise = random.choice([0.0, 0.0, 0.01, 0.03])

    def constraint(x: Array) -> tuple[Array, Array]:
        share = 1 / (1 + np.exp(-w @ x))
        return np.array([1 + margin - share]), -(share * (1 - share) * w)[None]

    return train(
        run, np.zeros(n), lambda x: 0.1 * x, constraint, primal, steps, noise, random.randrange(2**31)
    )


def optimizer(random: Random) -> Primal:
    kind = random.choice(["sgd", "momentum", "adam"])
    if kind == "adam":
        return Primal(log_uniform(random, 0.003, 0.03), adam=True)
    momentum = 0.9 if kind == "momentum" else 0.0
    return Primal(log_uniform(random, 0.02, 0.1) * (1 - momentum), momentum)


def explosion(random: Random) -> Run | None:
    """A ball |x|^2 <= r: a multiplier that is too large makes SGD's own step unstable, and everything grows."""
    n, steps = random.randint(1, 5), 2000
    lr = log_uniform(random, 0.01, 0.2)
    target = 1.0 + torch.rand(n, generator=numbers(random), dtype=torch.float64).numpy()
    ki = log_uniform(random, 3.0, 100.0) / lr
    run = Run(
        "explosion",
        0,
        **label("diverging", also=("oscillating",)),
        inequality=random.random() < 0.5,
        ki=ki,
        kp=0.0,
        nu=0.0,
    )
    run = train(
        run,
        target,
        lambda x: x - target,
        lambda x: (np.array([x @ x - 0.3]), 2 * x[None]),
        Primal(lr),
        steps,
    )
    sizes = run.violation.abs().squeeze(1)
    return run if float(sizes[-1]) > 1e4 * float(sizes[0]) else None


def adam(kind: str) -> Family:
    """A feasible problem under Adam: healthy where its violation settles without crossing; oscillating by count."""

    def family(random: Random) -> Run | None:
        problem, steps = linear(random, 1), random.choice([600, 1200, 2400])
        rate = log_uniform(random, 0.003, 0.03)
        problem.a /= float(problem.a.norm())
        problem.b = -torch.rand(1, generator=numbers(random), dtype=torch.float64) - 0.5
        ki = log_uniform(random, 1e-3, 0.05) if kind == "healthy" else log_uniform(random, 0.05, 3.0)
        kp = log_uniform(random, 0.3, 5.0) if kind == "healthy" else 0.0
        names = label(
            *(() if kind == "healthy" else ("oscillating",)), also=("overshoot",) if kind != "healthy" else ()
        )
        run = Run(f"adam-{kind}", 0, **names, inequality=random.random() < 0.5, ki=ki, kp=kp, nu=0.0)
        run = problem.run(run, steps, primal=Primal(rate, adam=True))
        return run if what_it_did(run.violation.squeeze(1)) == kind else None

    return family


def what_it_did(e: torch.Tensor, slack: float = 0.05) -> str | None:
    """Classify an exact trajectory from e > 0: settled without crossing zero, or crossing it many times."""
    steps = len(e)
    first = float(e[: steps // 4].max())
    late = e[steps // 2 :]
    if float(e.min()) > -slack * first and float(late.abs().max()) < slack * first:
        return "healthy"
    crossings = int(((e[1:] > 0) != (e[:-1] > 0)).sum())
    if crossings >= 10 and float(late.max() - late.min()) > 0.1 * first:
        return "oscillating"
    return None


def network(kind: str) -> Family:
    """A small network on mini-batches: the share it predicts positive must not pass a bound."""

    def family(random: Random) -> Run | None:
        g = numbers(random)
        data = torch.randn(400, 2, generator=g)
        labels = (data[:, 0] + 0.5 * data[:, 1] > -0.5).float()
        with torch.random.fork_rng():
            torch.manual_seed(random.randrange(2**31))
            model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        bounds = {
            "infeasible": -random.uniform(0.05, 0.3),
            "inactive": random.uniform(1.05, 1.3),
            "slow": 0.3,
            "healthy": random.uniform(0.4, 0.5),
        }
        gain = {
            "infeasible": log_uniform(random, 0.01, 0.1),
            "inactive": 0.05,
            "slow": log_uniform(random, 1e-5, 1e-4),
            "healthy": log_uniform(random, 0.06, 0.15),
        }
        steps = 800 if kind == "healthy" else random.choice([400, 600])
        kp, nu = (random.uniform(3.0, 8.0), 0.0) if kind == "healthy" else (0.0, 0.0)
        names = label(*(() if kind == "healthy" else (kind,)))
        run = Run(f"network-{kind}", 0, **names, inequality=True, ki=gain[kind], kp=kp, nu=nu)
        lagrangian = nupi.Lagrangian({"c": nupi.Inequality()})
        dual = nupi.NuPI(lagrangian.parameters(), ki=run.ki, kp=kp, nu=nu, init="zero", form="velocity")
        primal: torch.optim.Optimizer = (
            torch.optim.Adam(model.parameters(), lr=0.01)
            if random.random() < 0.5
            else torch.optim.SGD(model.parameters(), lr=0.2)
        )
        batch = 400 if kind == "healthy" else random.choice([100, 400])
        violations, multipliers = [], []
        for _ in range(steps):
            rows = torch.randperm(400, generator=g)[:batch] if batch < 400 else slice(None)
            out = model(data[rows]).squeeze(1)
            c = {"c": torch.sigmoid(out).mean() - bounds[kind]}
            lagrangian.ascend(dual, c)
            violations.append(c["c"].detach().double().reshape(1))
            multipliers.append(lagrangian.multipliers["c"].double().clone())
            primal.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(out, labels[rows])
            lagrangian(loss, c).backward()
            primal.step()
        run.violation, run.multiplier = torch.stack(violations), torch.stack(multipliers)
        if kind == "healthy" and what_it_did(run.violation.squeeze(1), 0.2) != "healthy":
            return None
        return run

    return family
