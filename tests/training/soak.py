"""A long run of dual steps of every kind, beside a plain loop that sees the same accepted errors.

Every problem has groups of random shapes. In every step some groups are absent, others come dense, indexed or averaged;
now and then an input is bad and must be refused, and now and then everything goes through a checkpoint.
"""

import io
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import nupi

KI, KP, NU = 0.01, 0.1, 0.3
STEPS_A_PROBLEM = 1_000
BAD = ("nan", "inf", "shape", "name", "index", "row", "count", "int")


@dataclass
class Report:
    steps: int = 0
    refused: int = 0
    checkpoints: int = 0
    problems: int = 0
    worst: float = 0.0  # largest difference to the plain loop
    largest: float = 0.0  # largest multiplier met
    memory: tuple[int, ...] = ()  # resident bytes after each problem


class PlainGroup:
    """nuPI in velocity form for one group, each row with a first step of its own."""

    def __init__(self, shape, project):
        self.theta, self.xi = np.zeros(shape), np.zeros(shape)
        self.seen, self.project = np.zeros(shape[:1], dtype=bool), project

    def step(self, e, rows):
        e, xi = e[rows], self.xi[rows]
        seen = self.seen[rows].reshape(-1, *(1,) * (e.ndim - 1))
        new = np.where(seen, NU * xi + (1 - NU) * e, 0.0)
        theta = self.theta[rows] + KI * e + KP * (new - xi)
        self.theta[rows] = np.maximum(theta, 0.0) if self.project else theta
        self.xi[rows], self.seen[rows] = new, True


class Problem:
    def __init__(self, rng):
        self.rng, self.np = rng, np.random.default_rng(rng.getrandbits(64))
        self.constraints, self.plain = {}, {}
        for number in range(rng.randint(1, 4)):
            shape = tuple(rng.choice([(1,), (3,), (7,), (4, 2), (2, 3)]))
            kind = rng.choice([nupi.Equality, nupi.Inequality])
            self.constraints[f"g{number}"] = kind(shape)
            self.plain[f"g{number}"] = PlainGroup(shape, kind is nupi.Inequality)
        self.build()

    def build(self):
        self.lagrangian = nupi.Lagrangian(self.constraints).double()
        self.dual = nupi.NuPI(self.lagrangian.parameters(), KI, KP, NU, init="zero", form="velocity")

    def through_a_checkpoint(self):
        file = io.BytesIO()
        torch.save({"lagrangian": self.lagrangian.state_dict(), "dual": self.dual.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        self.build()
        self.lagrangian.load_state_dict(saved["lagrangian"])
        self.dual.load_state_dict(saved["dual"])

    def errors(self):
        """What this step gives to nupi, and the same as errors and rows for the plain loop."""
        violations, expected = {}, {}
        for name, constraint in self.constraints.items():
            if self.rng.random() < 0.3:
                continue
            shape, rows = constraint.shape, constraint.shape[0]
            e = self.np.normal(size=shape)
            kind = self.rng.randrange(3)
            if kind == 0:
                violations[name], seen = torch.from_numpy(e), np.arange(rows)
            elif kind == 1:
                picked = self.np.integers(rows, size=self.rng.randrange(4))
                values = self.np.normal(size=(len(picked), *shape[1:]))
                violations[name] = nupi.Indexed(torch.from_numpy(values), torch.from_numpy(picked))
                e = np.zeros(shape)
                np.add.at(e, picked, values)
                seen = np.unique(picked)
            else:
                counts = self.np.integers(3, size=rows)
                sums = np.where(counts.reshape(-1, *(1,) * (len(shape) - 1)) > 0, e, np.nan)
                violations[name] = nupi.Averaged(torch.from_numpy(sums), torch.from_numpy(counts))
                e = e / np.maximum(counts, 1).reshape(-1, *(1,) * (len(shape) - 1))
                seen = np.flatnonzero(counts)
            expected[name] = (e, seen)
        return violations, expected

    def spoil(self, violations):
        name = self.rng.choice(list(self.constraints))
        shape = self.constraints[name].shape
        bad = self.rng.choice(BAD)
        ones = torch.ones(1, *shape[1:], dtype=torch.float64)
        return {
            **violations,
            **{
                "nan": {name: torch.full(shape, torch.nan, dtype=torch.float64)},
                "inf": {name: nupi.Indexed(ones * torch.inf, torch.zeros(1, dtype=torch.int64))},
                "shape": {name: torch.zeros(9, 9)},
                "name": {"nobody": torch.zeros(1)},
                "index": {name: nupi.Indexed(ones, torch.tensor([shape[0]]))},
                "row": {name: nupi.Indexed(torch.ones(1, 5), torch.tensor([0]))},
                "count": {name: nupi.Averaged(torch.zeros(shape), torch.full(shape[:1], -1.0))},
                "int": {name: torch.zeros(shape, dtype=torch.int64)},
            }[bad],
        }


def soak(steps, seed=0):
    """Run so many accepted steps, and report."""
    report, source = Report(), random.Random(seed)
    while report.steps < steps:
        problem = Problem(source)
        report.problems += 1
        for _ in range(min(STEPS_A_PROBLEM, steps - report.steps)):
            violations, expected = problem.errors()
            if source.random() < 0.02:
                try:
                    problem.lagrangian.ascend(problem.dual, problem.spoil(violations))
                except (ValueError, TypeError, KeyError, IndexError):
                    report.refused += 1
                else:
                    raise AssertionError(f"accepted what it should refuse: {violations}")
            problem.lagrangian.ascend(problem.dual, violations)
            for name, (e, rows) in expected.items():
                problem.plain[name].step(e, rows)
            report.steps += 1
            if source.random() < 0.002:
                problem.through_a_checkpoint()
                report.checkpoints += 1
        for name, plain in problem.plain.items():
            ours = problem.lagrangian.multipliers[name].numpy()
            report.worst = max(report.worst, float(np.abs(ours - plain.theta).max()))
            report.largest = max(report.largest, float(np.abs(ours).max()))
        report.memory += (resident(),)
    return report


def resident():
    """The bytes of memory this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
