"""Runs of constrained training with known right findings, from the spectrum of the iteration or by construction.

Every family makes runs of one kind from a seeded generator. Their labels do not depend on the diagnosis. Linear
problems are classified by the eigenvalues of `nupi.theory.iteration_matrix`. Others are built to be infeasible,
inactive, noisy or slow. A run is healthy if the same run without noise settles without crossing zero.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.findings.nonlinear import adam, explosion, network, out_of_reach
from benchmarks.findings.quadratic import (
    capped,
    capped_contradiction,
    contradiction,
    equality,
    inactive,
    inequality,
    noisy_equality,
    rectified,
    slow_gain,
    uncapped,
)
from benchmarks.findings.svm import svm
from benchmarks.findings.training import Run

if TYPE_CHECKING:
    from benchmarks.findings.training import Family

FAMILIES: dict[str, Family] = {
    "qp-healthy": equality("healthy", (0.01, 0.2), (0.8, 1.5)),
    "qp-diverging": equality("diverging", (0.2, 3.0), (0.0, 0.6)),
    "qp-oscillating": equality("oscillating", (0.02, 0.5), (0.0, 0.08)),
    "qp-overshoot": equality("overshoot", (0.02, 0.3), (0.2, 0.4)),
    "ineq-healthy": inequality("healthy", (0.01, 0.2), (0.8, 1.5)),
    "ineq-oscillating": inequality("oscillating", (0.02, 1.0), (0.0, 0.08)),
    "noise-healthy": noisy_equality("healthy"),
    "noise-noisy": noisy_equality("noisy"),
    "rectified": rectified,
    "inactive": inactive,
    "slow": slow_gain,
    "contradiction": contradiction,
    "capped": capped,
    "capped-contradiction": capped_contradiction,
    "uncapped": uncapped,
    "out-of-reach": out_of_reach,
    "explosion": explosion,
    "adam-healthy": adam("healthy"),
    "adam-oscillating": adam("oscillating"),
    "network-healthy": network("healthy"),
    "network-infeasible": network("infeasible"),
    "network-inactive": network("inactive"),
    "network-slow": network("slow"),
    "svm-healthy": svm("healthy"),
    "svm-oscillating": svm("oscillating"),
}


def make(family: str, seed: int, attempts: int = 300) -> Run:
    """The run of this family and seed: the first of its random problems that is not a borderline case."""
    random = Random(f"{family} {seed}")
    for _ in range(attempts):
        run = FAMILIES[family](random)
        if run is not None and len(run.violation) > 3:
            run.family, run.seed = family, seed
            return run
    raise RuntimeError(f"no run of {family} with seed {seed} in {attempts} attempts")


def as_plain(run: Run) -> dict[str, Any]:
    """A run as data that `torch.save` keeps."""
    return {**run.__dict__, "truth": sorted(run.truth), "also": sorted(run.also)}


def from_plain(plain: dict[str, Any]) -> Run:
    return Run(**{**plain, "truth": frozenset(plain["truth"]), "also": frozenset(plain["also"])})
