"""A dual optimizer that is written outside of the package: one class, and it serves `ascend` and `sweep`."""

import pytest
import torch
from laws import BOUNDS, LAWS, Case

import nupi
from nupi.optim import DualOptimizer
from nupi.rule import add_scaled_, copy_


class Leaky(DualOptimizer):
    """The error, with a share of the one before: theta += lr (e + share e_before)."""

    gain_names = ("lr", "share")
    slot_names = ("before",)

    def __init__(self, params, lr, share=0.5, *, maximize=True, foreach=None):
        super().__init__(params, {"lr": lr, "share": share, "maximize": maximize, "foreach": foreach})

    @staticmethod
    def scaled_gains(options):
        return {"lr": options["lr"], "old": options["lr"] * options["share"]}

    @staticmethod
    def slots(options, bounds):  # noqa: ARG004
        return ("before",)

    @staticmethod
    def update(theta, state, e, gains, options, bounds, *, first):  # noqa: ARG004
        add_scaled_(theta, e, gains["lr"])
        add_scaled_(theta, state["before"], gains["old"])
        copy_(state["before"], e)


def oracle(errors, theta, lr=None, low=-float("inf"), high=float("inf")):
    path, before = [], 0.0
    for e, rate in zip(errors, lr or [1.0] * len(errors), strict=False):
        theta = min(max(theta + 0.1 * rate * (e + 0.5 * before), low), high)
        before = e
        path.append(theta)
    return path


CASE = Case("Leaky", Leaky, {"lr": 0.1}, oracle, other={"lr": 0.4})


@pytest.mark.parametrize(
    "law", [law for law, holds in LAWS.items() if holds(CASE)], ids=lambda law: law.__name__
)
def test_it_keeps_the_laws(law):
    law(CASE)


def test_it_ascends_and_is_swept():
    assert BOUNDS

    def objective(x):
        return x.square().sum()

    def inequality(x):
        return 1 - x.sum()

    start = torch.zeros(2, dtype=torch.float64)
    swept = nupi.sweep(
        objective,
        start,
        inequality=inequality,
        dual=Leaky,
        grid={"lr": [0.02, 0.05], "share": [0.0, 0.5]},
        steps=300,
    )
    for lr in (0.02, 0.05):
        for share in (0.0, 0.5):
            alone = nupi.minimize(
                objective,
                start,
                inequality=inequality,
                dual=lambda p, lr=lr, share=share: Leaky(p, lr, share),
                steps=300,
            )
            found = swept.at(lr=lr, share=share)
            torch.testing.assert_close(found.x, alone.x, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(found.multipliers, alone.multipliers, rtol=1e-10, atol=1e-12)
